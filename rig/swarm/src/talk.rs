//! Kettles that have a WebSocket each, over which they send measurements and receive receipts and
//! commands.
//!
//! The schedule is that of [`Kettles`], and latencies are measured in the same way.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use testkit::websocket::{Frame, PING, PONG, TEXT, parse_frame, write_frame};

use crate::kettles::Kettles;
use crate::plan::Plan;
use crate::tally::{Tally, record};
use crate::thread::{Opener, RETRY, Shared, TICK, watch};

const OPERATIONS: &[&str] = &["measurement"];
/// Maximum length of an incomplete frame; receipts and commands are short.
const FRAME_LEN_MAX: usize = 4096;

/// Sends the measurements of `kettles`, each over a socket of its own; otherwise like
/// [`run`](crate::run).
///
/// # Errors
///
/// Returns an error if epoll is not available.
pub fn talk(
    plan: &Plan,
    kettles: Kettles,
    stop: &AtomicBool,
    each_second: &mut dyn FnMut(Duration, &Tally),
) -> io::Result<Tally> {
    watch(OPERATIONS, stop, each_second, |shared| {
        let count = kettles.count();
        let mut talk = Talk {
            plan,
            shared,
            kettles,
            opener: Opener::new(plan, count)?,
            talkers: std::iter::repeat_with(Talker::default)
                .take(count)
                .collect(),
            waiting: 0,
            seen: Tally::new(OPERATIONS),
            epoch: Instant::now(),
        };
        talk.run()
    })
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Closed,
    Opening,
    /// The response to the upgrade request is pending.
    Upgrading,
    Open,
}

/// WebSocket of a kettle.
#[derive(Debug, Default)]
struct Talker {
    stream: Option<TcpStream>,
    phase: Phase,
    since: Duration,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Due times of the measurements without a receipt.
    waiting: VecDeque<Duration>,
}

struct Talk<'a> {
    plan: &'a Plan,
    shared: &'a Shared<'a>,
    kettles: Kettles,
    opener: Opener<'a>,
    talkers: Vec<Talker>,
    /// Number of measurements without a receipt.
    waiting: usize,
    seen: Tally,
    epoch: Instant,
}

impl Talk<'_> {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Sends measurements until the end of the run; returns the time during which it sent them.
    fn run(&mut self) -> io::Result<Duration> {
        while self.opener.missing() > 0
            && self.now() < self.plan.timeout
            && !self.shared.is_stopped()
        {
            self.turn(TICK)?;
        }
        self.seen.failures.connect = self.opener.missing() as u64;
        self.epoch = self.shared.start();
        self.opener.restart_clock();
        let mut looked = Duration::ZERO;
        let mut over = None;
        loop {
            let now = self.now();
            if over.is_none() && (now >= self.plan.duration || self.shared.is_stopped()) {
                over = Some(now.min(self.plan.duration));
            }
            if let Some(over) = over
                && (self.waiting == 0 || now.saturating_sub(over) > self.plan.timeout)
            {
                self.seen.failures.timeout += self.waiting as u64;
                let is_open = |it: &&Talker| it.phase == Phase::Open;
                self.seen.connections = self.talkers.iter().filter(is_open).count();
                self.shared.publish(&mut self.seen);
                return Ok(over);
            }
            let wait = match self.kettles.next_measurement() {
                Some(due) if over.is_none() => due.saturating_sub(now).min(TICK),
                _ => TICK,
            };
            self.turn(wait)?;
            if over.is_none() {
                self.send_due()?;
            }
            if now.saturating_sub(looked) >= TICK {
                looked = now;
                self.look_after(now);
                self.shared.publish(&mut self.seen);
            }
        }
    }

    /// Opens closed sockets and handles socket events.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let now = self.now();
        self.opener.open(now, |index, stream| {
            self.talkers[index] = Talker {
                stream: Some(stream),
                phase: Phase::Opening,
                since: now,
                output: self.kettles.upgrade(index),
                ..Talker::default()
            };
        })?;
        let mut keys = Vec::new();
        self.opener.poller.wait(wait, &mut keys)?;
        for index in keys {
            if self.ready(index).is_err() {
                self.lost(index);
            }
        }
        Ok(())
    }

    /// Sends the measurements that are due. If the socket of a kettle is not open, its measurement
    /// counts as unsent.
    fn send_due(&mut self) -> io::Result<()> {
        while let Some(due) = self.kettles.next_measurement()
            && due <= self.now()
            && due < self.plan.duration
        {
            let (index, body) = self.kettles.measure();
            let talker = &mut self.talkers[index];
            if talker.phase != Phase::Open {
                self.seen.failures.unsent += 1;
                continue;
            }
            // A constant masking key suffices, because no proxy is in between.
            write_frame(&mut talker.output, TEXT, [0; 4], &body);
            talker.waiting.push_back(due);
            self.waiting += 1;
            record(
                &mut self.seen.late,
                self.epoch.elapsed().saturating_sub(due),
            );
            if self.write(index).is_err() {
                self.lost(index);
            }
        }
        Ok(())
    }

    fn write(&mut self, index: usize) -> io::Result<()> {
        let talker = &mut self.talkers[index];
        let Some(stream) = &mut talker.stream else {
            return Ok(());
        };
        while !talker.output.is_empty() {
            match stream.write(&talker.output) {
                Ok(len) => drop(talker.output.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.opener
            .poller
            .modify(stream, index, !talker.output.is_empty())
    }

    /// Handles an event on a socket; returns an error if the socket is unusable.
    fn ready(&mut self, index: usize) -> io::Result<()> {
        let talker = &mut self.talkers[index];
        let Some(stream) = &mut talker.stream else {
            return Ok(());
        };
        if talker.phase == Phase::Opening {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            stream.peer_addr()?;
            talker.phase = Phase::Upgrading;
        }
        let mut piece = [0; 4096];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => talker
                    .input
                    .extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if talker.phase == Phase::Upgrading {
            let end = talker
                .input
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n");
            if let Some(end) = end {
                if !talker.input.starts_with(b"HTTP/1.1 101 ") {
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                talker.input.drain(..end + 4);
                talker.phase = Phase::Open;
                self.opener.opening -= 1;
            }
        }
        if self.talkers[index].phase == Phase::Open {
            self.hear(index)?;
        }
        self.write(index)
    }

    /// Handles the complete frames received on a socket.
    fn hear(&mut self, index: usize) -> io::Result<()> {
        let now = self.now();
        let talker = &mut self.talkers[index];
        while let Some(Frame {
            first,
            payload,
            len,
        }) = parse_frame(&talker.input)?
        {
            match first {
                TEXT if payload.starts_with(b"{\"command\"") => {}
                TEXT => {
                    let Some(due) = talker.waiting.pop_front() else {
                        self.seen.failures.wrong += 1;
                        talker.input.drain(..len);
                        continue;
                    };
                    self.waiting -= 1;
                    if payload.starts_with(b"{\"stored\"") {
                        if let Some(operation) = self.seen.operations.first_mut() {
                            record(&mut operation.latency, now.saturating_sub(due));
                            operation.body_bytes += payload.len() as u64;
                        }
                    } else if payload.starts_with(b"{\"retry\"") {
                        self.seen.failures.refused += 1;
                    } else {
                        self.seen.failures.wrong += 1;
                    }
                }
                PING => {
                    write_frame(&mut talker.output, PONG, [0; 4], b"");
                }
                _ => return Err(ErrorKind::ConnectionAborted.into()),
            }
            talker.input.drain(..len);
        }
        if talker.input.len() > FRAME_LEN_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// Closes a broken socket and counts its unanswered measurements as failed.
    fn lost(&mut self, index: usize) {
        let talker = std::mem::take(&mut self.talkers[index]);
        match talker.phase {
            Phase::Closed => return,
            Phase::Opening | Phase::Upgrading => self.opener.opening -= 1,
            Phase::Open if talker.waiting.is_empty() => self.seen.reopened += 1,
            Phase::Open => {
                self.waiting -= talker.waiting.len();
                self.seen.failures.closed += talker.waiting.len() as u64;
            }
        }
        let not_before = self.now() + RETRY;
        self.opener.close(index, not_before);
    }

    /// Closes sockets that opened or responded too late.
    fn look_after(&mut self, now: Duration) {
        let timeout = self.plan.timeout;
        let is_late = |talker: &Talker| match talker.phase {
            Phase::Closed => false,
            Phase::Opening | Phase::Upgrading => now.saturating_sub(talker.since) > timeout,
            Phase::Open => {
                let first = talker.waiting.front();
                first.is_some_and(|due| now.saturating_sub(*due) > timeout)
            }
        };
        let late = self
            .talkers
            .iter()
            .enumerate()
            .filter(|(_, it)| is_late(it));
        let late: Vec<_> = late.map(|(index, _)| index).collect();
        for index in late {
            let waiting = std::mem::take(&mut self.talkers[index].waiting);
            self.waiting -= waiting.len();
            self.seen.failures.timeout += waiting.len() as u64;
            self.lost(index);
        }
    }
}
