//! Kettles with a WebSocket each: they send measurements, and receive receipts and commands.
//!
//! The schedule, and hence the latencies, are those of [`Kettles`]. One thread serves all sockets.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::websocket::{Frame, PING, PONG, TEXT, parse_frame, write_frame};

use crate::kettles::Kettles;
use crate::plan::Plan;
use crate::sockets::{Poller, connect, takes_sources};
use crate::tally::{Tally, record};
use crate::thread::{OPENING_MAX, RETRY, TICK};

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
    let count = kettles.count();
    let mut talk = Talk {
        plan,
        kettles,
        poller: Poller::new()?,
        talkers: std::iter::repeat_with(Talker::default)
            .take(count)
            .collect(),
        closed: (0..count).map(|index| (index, Duration::ZERO)).collect(),
        opening: 0,
        waiting: 0,
        seen: Tally::new(OPERATIONS),
        epoch: Instant::now(),
    };
    talk.run(stop, each_second)
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
    kettles: Kettles,
    poller: Poller,
    talkers: Vec<Talker>,
    /// Sockets to open, each with the earliest time to do so.
    closed: VecDeque<(usize, Duration)>,
    opening: usize,
    /// Number of measurements without a receipt.
    waiting: usize,
    seen: Tally,
    epoch: Instant,
}

impl Talk<'_> {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn run(
        &mut self,
        stop: &AtomicBool,
        each_second: &mut dyn FnMut(Duration, &Tally),
    ) -> io::Result<Tally> {
        let is_stopped = || stop.load(Ordering::Relaxed);
        while !(self.closed.is_empty() && self.opening == 0)
            && self.now() < self.plan.timeout
            && !is_stopped()
        {
            self.turn(TICK)?;
        }
        self.seen.failures.connect += (self.closed.len() + self.opening) as u64;
        self.epoch = Instant::now();
        for (_, not_before) in &mut self.closed {
            *not_before = Duration::ZERO;
        }
        let mut sum = Tally::new(OPERATIONS);
        let (mut looked, mut told) = (Duration::ZERO, Duration::ZERO);
        let mut over = None;
        loop {
            let now = self.now();
            if over.is_none() && (now >= self.plan.duration || is_stopped()) {
                over = Some(now.min(self.plan.duration));
            }
            if let Some(over) = over
                && (self.waiting == 0 || now.saturating_sub(over) > self.plan.timeout)
            {
                self.seen.failures.timeout += self.waiting as u64;
                let is_open = |it: &&Talker| it.phase == Phase::Open;
                self.seen.connections = self.talkers.iter().filter(is_open).count();
                sum.add(&self.seen);
                sum.duration = over;
                return Ok(sum);
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
            }
            if now.saturating_sub(told) >= Duration::from_secs(1) {
                self.seen.duration = now.saturating_sub(told);
                told = now;
                each_second(now, &self.seen);
                sum.add(&self.seen);
                self.seen.clear();
            }
        }
    }

    /// Opens closed sockets and handles socket events.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.open()?;
        let mut keys = Vec::new();
        self.poller.wait(wait, &mut keys)?;
        for index in keys {
            if self.ready(index).is_err() {
                self.lost(index);
            }
        }
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        let now = self.now();
        while self.opening < OPENING_MAX
            && let Some(&(index, not_before)) = self.closed.front()
            && not_before <= now
        {
            self.closed.pop_front();
            let source = u8::try_from(index % usize::from(self.plan.sources.max(1)) + 1).ok();
            let source = source.filter(|_| takes_sources(self.plan.address));
            match connect(self.plan.address, source) {
                Ok(stream) => {
                    self.poller.add(&stream, index)?;
                    self.opening += 1;
                    self.talkers[index] = Talker {
                        stream: Some(stream),
                        phase: Phase::Opening,
                        since: now,
                        output: self.kettles.upgrade(index),
                        ..Talker::default()
                    };
                }
                Err(_) => self.closed.push_back((index, now + RETRY)),
            }
        }
        Ok(())
    }

    /// Sends the measurements that are due. Those of kettles without an open socket count as
    /// unsent.
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
        self.poller.modify(stream, index, !talker.output.is_empty())
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
                self.opening -= 1;
            }
        }
        if self.talkers[index].phase == Phase::Open {
            self.hear(index)?;
        }
        self.write(index)
    }

    /// Handles the complete frames.
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
            Phase::Opening | Phase::Upgrading => self.opening -= 1,
            Phase::Open if talker.waiting.is_empty() => self.seen.reopened += 1,
            Phase::Open => {
                self.waiting -= talker.waiting.len();
                self.seen.failures.closed += talker.waiting.len() as u64;
            }
        }
        self.closed.push_back((index, self.now() + RETRY));
    }

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
