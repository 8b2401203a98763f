//! The load thread, which sends the requests of a fleet, and the thread that reports.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Event, State};
use crate::fleet::{Answer, Ask, Fleet, Verdict};
use crate::plan::Plan;
use crate::sockets::{Poller, connect};
use crate::tally::{Tally, record};

/// Maximum number of connections that are being opened at the same time. More would overflow a
/// short accept queue, and the client repeats a dropped SYN only after a second.
const OPENING_MAX: usize = 100;
/// Delay before another attempt to open a connection.
pub(crate) const RETRY: Duration = Duration::from_millis(200);
/// Interval of periodic checks, and maximum wait for events.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Extra time after the end of a run, to send the requests that were due at the very end.
const GRACE: Duration = Duration::from_millis(250);
/// Maximum number of requests to write before polling for responses.
const BURST_MAX: usize = 64;

/// Sends the requests of `fleet` and calls `each_second` with the results of each second. Ends
/// after the plan's duration, or soon after `stop` is set. Returns the results of the whole run.
///
/// The clock starts when all connections are open, or after the plan's timeout. Connections that
/// could not be opened by then count as failures.
///
/// # Errors
///
/// Returns an error if epoll is not available.
pub fn run<F: Fleet>(
    plan: &Plan,
    fleet: F,
    stop: &AtomicBool,
    each_second: &mut dyn FnMut(Duration, &Tally),
) -> io::Result<Tally> {
    let operations = fleet.operations();
    watch(operations, stop, each_second, |shared| {
        Thread::new(plan, fleet, shared)?.run()
    })
}

/// Runs `load` on its own thread, so that reports do not delay requests. Returns the sum of the
/// results that the load publishes.
pub(crate) fn watch(
    operations: &[&'static str],
    stop: &AtomicBool,
    each_second: &mut dyn FnMut(Duration, &Tally),
    load: impl FnOnce(&Shared<'_>) -> io::Result<Duration> + Send,
) -> io::Result<Tally> {
    let shared = &Shared {
        start: OnceLock::new(),
        second: Mutex::new(Tally::new(operations)),
        stop,
    };
    let (mut sum, mut second) = (Tally::new(operations), Tally::new(operations));
    let mut last = Duration::ZERO;
    std::thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        // The receiver lives until the result has arrived.
        scope.spawn(move || ended.send(load(shared)).unwrap_or_default());
        loop {
            let result = end.recv_timeout(Duration::from_secs(1));
            let now = shared.start.get().map_or(Duration::ZERO, Instant::elapsed);
            second.clear();
            if let Ok(mut seen) = shared.second.lock() {
                std::mem::swap(&mut *seen, &mut second);
            }
            second.duration = now.saturating_sub(last);
            last = now;
            sum.add(&second);
            match result {
                Ok(duration) => {
                    sum.duration = duration?;
                    return Ok(sum);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the load thread panicked"));
                }
                Err(RecvTimeoutError::Timeout) if now > Duration::ZERO => {
                    each_second(now, &second);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    })
}

/// State shared by the load thread and the reporting thread.
pub(crate) struct Shared<'a> {
    start: OnceLock<Instant>,
    /// Results since the last report of a second.
    second: Mutex<Tally>,
    stop: &'a AtomicBool,
}

impl Shared<'_> {
    /// Starts the clock of the run.
    pub(crate) fn start(&self) -> Instant {
        *self.start.get_or_init(Instant::now)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Moves `seen` into the results of the current second.
    pub(crate) fn publish(&self, seen: &mut Tally) {
        if let Ok(mut second) = self.second.lock() {
            second.add(seen);
        }
        seen.clear();
    }
}

/// The connections that are closed or being opened.
pub(crate) struct Opener<'a> {
    plan: &'a Plan,
    pub(crate) poller: Poller,
    /// Connections to open, each with the earliest time to do so.
    closed: VecDeque<(usize, Duration)>,
    /// Number of connections that are being opened.
    pub(crate) opening: usize,
}

impl<'a> Opener<'a> {
    /// Creates an opener of `count` connections, all of them closed.
    pub(crate) fn new(plan: &'a Plan, count: usize) -> io::Result<Self> {
        Ok(Self {
            plan,
            poller: Poller::new()?,
            closed: (0..count).map(|index| (index, Duration::ZERO)).collect(),
            opening: 0,
        })
    }

    /// Returns the number of connections that are not open.
    pub(crate) fn missing(&self) -> usize {
        self.closed.len() + self.opening
    }

    /// Schedules a connection to be opened again, at `not_before` or later.
    pub(crate) fn close(&mut self, index: usize, not_before: Duration) {
        self.closed.push_back((index, not_before));
    }

    /// Allows all closed connections to be opened at once, because the clock restarts at zero.
    pub(crate) fn restart_clock(&mut self) {
        for (_, not_before) in &mut self.closed {
            *not_before = Duration::ZERO;
        }
    }

    /// Starts opening closed connections; calls `opening` with each of them.
    pub(crate) fn open(
        &mut self,
        now: Duration,
        mut opening: impl FnMut(usize, TcpStream),
    ) -> io::Result<()> {
        while self.opening < OPENING_MAX
            && let Some(&(index, not_before)) = self.closed.front()
            && not_before <= now
        {
            self.closed.pop_front();
            match connect(self.plan.address, index) {
                Ok(stream) => {
                    self.poller.add(&stream, index)?;
                    self.opening += 1;
                    opening(index, stream);
                }
                Err(_) => self.close(index, now + RETRY),
            }
        }
        Ok(())
    }
}

struct Thread<'a, F> {
    plan: &'a Plan,
    shared: &'a Shared<'a>,
    fleet: F,
    connections: Vec<Connection>,
    /// Queue of idle connections, longest idle first; it may contain connections that were closed
    /// meanwhile.
    free: VecDeque<usize>,
    opener: Opener<'a>,
    busy: usize,
    seen: Tally,
    piece: Vec<u8>,
    epoch: Instant,
    published: Duration,
    looked: Duration,
}

impl<'a, F: Fleet> Thread<'a, F> {
    fn new(plan: &'a Plan, fleet: F, shared: &'a Shared<'a>) -> io::Result<Self> {
        let seen = Tally::new(fleet.operations());
        let count = plan.connections;
        Ok(Self {
            plan,
            shared,
            fleet,
            connections: std::iter::repeat_with(Connection::default)
                .take(count)
                .collect(),
            free: VecDeque::with_capacity(count),
            opener: Opener::new(plan, count)?,
            busy: 0,
            seen,
            piece: vec![0; 256 << 10],
            epoch: Instant::now(),
            published: Duration::ZERO,
            looked: Duration::ZERO,
        })
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Sends requests until the end of the run; returns the time during which requests were sent.
    fn run(&mut self) -> io::Result<Duration> {
        self.open_all()?;
        self.epoch = self.shared.start();
        (self.looked, self.published) = (Duration::ZERO, Duration::ZERO);
        self.opener.restart_clock();
        let mut over = None;
        let mut keys = Vec::new();
        loop {
            let now = self.now();
            if over.is_none() {
                if self.shared.is_stopped() {
                    over = Some(now);
                } else if now >= self.plan.duration + GRACE || self.is_done(now) {
                    over = Some(self.plan.duration);
                }
            }
            let burst_is_over = over.is_some() || self.send_due()?;
            if let Some(over) = over {
                if self.busy == 0 || now.saturating_sub(over) > self.plan.timeout {
                    self.seen.settled = now;
                    self.end(over);
                    return Ok(over);
                }
            } else {
                self.open()?;
            }
            let wait = if burst_is_over {
                self.until_due()
            } else {
                Duration::ZERO
            };
            self.opener.poller.wait(wait, &mut keys)?;
            for key in keys.drain(..) {
                self.ready(key)?;
            }
            self.look_after()?;
        }
    }

    /// Returns whether all requests that are due before the end were sent.
    fn is_done(&self, now: Duration) -> bool {
        let none_left = self
            .fleet
            .next_due()
            .is_none_or(|due| due >= self.plan.duration);
        now >= self.plan.duration && none_left
    }

    fn until_due(&self) -> Duration {
        match self.fleet.next_due() {
            Some(due) if !self.free.is_empty() => due.saturating_sub(self.now()).min(TICK),
            _ => TICK,
        }
    }

    fn open_all(&mut self) -> io::Result<()> {
        let mut keys = Vec::new();
        while self.opener.missing() > 0
            && self.now() < self.plan.timeout
            && !self.shared.is_stopped()
        {
            self.open()?;
            self.opener.poller.wait(TICK, &mut keys)?;
            for key in keys.drain(..) {
                self.ready(key)?;
            }
        }
        self.seen.failures.connect = self.opener.missing() as u64;
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        let now = self.now();
        self.opener.open(now, |index, stream| {
            self.connections[index].state = State::Opening(stream, now);
        })
    }

    /// Sends due requests as long as a connection is idle. Returns `false` if more requests may be
    /// due.
    fn send_due(&mut self) -> io::Result<bool> {
        for _ in 0..BURST_MAX {
            let now = self.now();
            let due = self.fleet.next_due();
            if due.is_none_or(|due| due > now || due >= self.plan.duration) {
                return Ok(true);
            }
            let Some(index) = self.free.pop_front() else {
                return Ok(true);
            };
            let connection = &mut self.connections[index];
            match std::mem::take(&mut connection.state) {
                State::Free(stream) => self.send(index, stream)?,
                // The connection was closed while it was in the queue of idle connections.
                state => connection.state = state,
            }
        }
        Ok(false)
    }

    fn send(&mut self, index: usize, stream: TcpStream) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.request.clear();
        connection.response.clear();
        let ask = self.fleet.ask(&mut connection.request);
        let now = self.epoch.elapsed();
        record(&mut self.seen.late, now.saturating_sub(ask.due));
        connection.state = State::Busy(stream, ask, now);
        self.busy += 1;
        match connection.write() {
            Ok(false) => {}
            Ok(true) => self.watch_room(index, true)?,
            Err(_) => self.lost(index, Loss::Closed),
        }
        Ok(())
    }

    fn watch_room(&self, index: usize, writes: bool) -> io::Result<()> {
        match &self.connections[index].state {
            State::Busy(stream, ..) | State::Free(stream) => {
                self.opener.poller.modify(stream, index, writes)
            }
            State::Closed | State::Opening(..) => Ok(()),
        }
    }

    /// Handles an event on a socket.
    fn ready(&mut self, index: usize) -> io::Result<()> {
        let now = self.now();
        let connection = &mut self.connections[index];
        if let State::Opening(stream, _) = &connection.state {
            self.opener.opening -= 1;
            // The socket is connected if it has no pending error and a peer address.
            let is_open = matches!(stream.take_error(), Ok(None)) && stream.peer_addr().is_ok();
            let state = std::mem::take(&mut connection.state);
            if let State::Opening(stream, _) = state
                && is_open
            {
                connection.state = State::Free(stream);
                self.free.push_back(index);
                return self.watch_room(index, false);
            }
            self.opener.close(index, now + RETRY);
            return Ok(());
        }
        if !connection.request.is_empty() {
            match connection.write() {
                Ok(true) => {}
                Ok(false) => self.watch_room(index, false)?,
                Err(_) => {
                    self.lost(index, Loss::Closed);
                    return Ok(());
                }
            }
        }
        match self.connections[index].read(&mut self.piece) {
            Event::Nothing => {}
            Event::Malformed => self.lost(index, Loss::Malformed),
            Event::Closed => self.lost(index, Loss::Closed),
            Event::TurnedAway => self.lost(index, Loss::TurnedAway),
            Event::Answered(complete) => {
                let connection = &mut self.connections[index];
                let State::Busy(stream, ask, _) = std::mem::take(&mut connection.state) else {
                    unreachable!("only a busy connection reads answers");
                };
                self.busy -= 1;
                // The server has responded before it read the whole request. The rest of the
                // request would be read as the next request, so the connection cannot be reused.
                if complete.closes || !connection.request.is_empty() {
                    self.opener.close(index, now);
                } else {
                    connection.state = State::Free(stream);
                    self.free.push_back(index);
                }
                let answer = Answer {
                    status: complete.status,
                    body: &connection.response.body,
                    body_len: complete.body_len,
                };
                let verdict = self.fleet.answered(&ask, &answer, now);
                self.count(&ask, verdict, complete.body_len, now);
            }
        }
        Ok(())
    }

    fn count(&mut self, ask: &Ask, verdict: Verdict, body_len: u64, now: Duration) {
        match verdict {
            Verdict::Good(operation) => {
                if let Some(operation) = self.seen.operations.get_mut(operation) {
                    record(&mut operation.latency, now.saturating_sub(ask.due));
                    operation.body_bytes += body_len;
                }
            }
            Verdict::Refused => self.seen.failures.refused += 1,
            Verdict::Wrong => self.seen.failures.wrong += 1,
        }
    }

    /// Handles the loss of a connection: its request, if any, counts as failed.
    fn lost(&mut self, index: usize, loss: Loss) {
        let mut not_before = self.now();
        match std::mem::take(&mut self.connections[index].state) {
            State::Busy(_, ask, _) => {
                self.busy -= 1;
                self.fleet.failed(&ask);
                match loss {
                    Loss::Closed => self.seen.failures.closed += 1,
                    Loss::Malformed => self.seen.failures.malformed += 1,
                    Loss::Timeout => self.seen.failures.timeout += 1,
                    Loss::TurnedAway => self.seen.failures.refused += 1,
                }
            }
            State::Free(_) => match loss {
                Loss::Malformed => self.seen.failures.malformed += 1,
                Loss::TurnedAway => {
                    self.seen.failures.connect += 1;
                    not_before += RETRY;
                }
                Loss::Closed | Loss::Timeout => self.seen.reopened += 1,
            },
            State::Opening(..) => self.opener.opening -= 1,
            State::Closed => return,
        }
        self.connections[index].request.clear();
        self.opener.close(index, not_before);
    }

    /// Checks timeouts and publishes results, both periodically.
    fn look_after(&mut self) -> io::Result<()> {
        let now = self.now();
        if now.saturating_sub(self.looked) >= TICK {
            self.looked = now;
            let timeout = self.plan.timeout;
            let is_late = |connection: &Connection| match connection.state {
                State::Busy(_, _, since) | State::Opening(_, since) => {
                    now.saturating_sub(since) > timeout
                }
                State::Closed | State::Free(_) => false,
            };
            let late = self
                .connections
                .iter()
                .enumerate()
                .filter(|(_, it)| is_late(it));
            let late: Vec<usize> = late.map(|(index, _)| index).collect();
            for index in late {
                self.lost(index, Loss::Timeout);
            }
        }
        if now.saturating_sub(self.published) >= Duration::from_millis(250) {
            self.published = now;
            self.shared.publish(&mut self.seen);
        }
        Ok(())
    }

    fn end(&mut self, over: Duration) {
        let mut request = Vec::new();
        while self.fleet.next_due().is_some_and(|due| due < over) {
            request.clear();
            self.fleet.ask(&mut request);
            self.seen.failures.unsent += 1;
        }
        self.seen.connections = self.connections.len() - self.opener.missing();
        // Requests that are still in flight here have reached their timeout.
        self.seen.failures.timeout += self.busy as u64;
        self.shared.publish(&mut self.seen);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Closed,
    Malformed,
    Timeout,
    TurnedAway,
}
