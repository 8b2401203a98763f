//! Load-generating threads, each with a fleet and connections of its own.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Barrier, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Event, State};
use crate::fleet::{Answer, Ask, Fleet, Verdict};
use crate::plan::Plan;
use crate::sockets::{Poller, connect, takes_sources};
use crate::tally::{Tally, record};

/// Maximum number of connections that a thread opens at the same time. More would overflow a short
/// accept queue, and the client repeats a dropped SYN only after a second.
pub(crate) const OPENING_MAX: usize = 100;
/// Delay before another attempt to open a connection.
pub(crate) const RETRY: Duration = Duration::from_millis(200);
/// Interval of periodic checks, and maximum wait for events.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Extra time after the end of a run, to send the requests that were due at the very end.
const GRACE: Duration = Duration::from_millis(250);
/// Maximum number of requests to write before polling for responses.
const BURST_MAX: usize = 64;

/// Sends the requests of `fleets`, on one thread each, and calls `each_second` with the results of
/// each second. Ends after the plan's duration, or soon after `stop` is set. Returns the sum.
///
/// The clock starts when all connections are open, or after the plan's timeout. Connections that
/// could not be opened by then count as failures.
///
/// # Errors
///
/// Returns an error if there are no fleets, or if epoll is not available.
pub fn run<F: Fleet>(
    plan: &Plan,
    fleets: Vec<F>,
    stop: &AtomicBool,
    each_second: &mut dyn FnMut(Duration, &Tally),
) -> io::Result<Tally> {
    let Some(operations) = fleets.first().map(|fleet| fleet.operations()) else {
        return Err(io::Error::other("there is no fleet"));
    };
    let count = fleets.len();
    let shared = Shared {
        barrier: Barrier::new(count),
        start: OnceLock::new(),
        second: Mutex::new(Tally::new(operations)),
        stop,
    };
    let begin = |index| plan.connections * index / count;
    let threads = fleets
        .into_iter()
        .enumerate()
        .map(|(index, fleet)| Thread::new(plan, fleet, begin(index)..begin(index + 1), &shared));
    let threads = threads.collect::<io::Result<Vec<_>>>()?;
    let (ended, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        for mut thread in threads {
            let ended: Sender<_> = ended.clone();
            // The receiver lives until all threads have dropped their senders.
            scope.spawn(move || ended.send(thread.run()).unwrap_or_default());
        }
        drop(ended);
        watch(&shared, operations, &ends, each_second)
    })
}

/// Sums the threads' results until all threads have ended.
fn watch(
    shared: &Shared<'_>,
    operations: &[&'static str],
    ends: &Receiver<io::Result<Duration>>,
    each_second: &mut dyn FnMut(Duration, &Tally),
) -> io::Result<Tally> {
    let (mut sum, mut second) = (Tally::new(operations), Tally::new(operations));
    let mut last = Duration::ZERO;
    let mut result = Ok(());
    loop {
        let over = match ends.recv_timeout(Duration::from_secs(1)) {
            Ok(Ok(duration)) => {
                sum.duration = sum.duration.max(duration);
                continue;
            }
            Ok(Err(error)) => {
                result = Err(error);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        let now = shared.start.get().map_or(Duration::ZERO, Instant::elapsed);
        second.clear();
        if let Ok(mut seen) = shared.second.lock() {
            std::mem::swap(&mut *seen, &mut second);
        }
        second.duration = now.saturating_sub(last);
        last = now;
        sum.add(&second);
        if over {
            return result.map(|()| sum);
        }
        if now > Duration::ZERO {
            each_second(now, &second);
        }
    }
}

struct Shared<'a> {
    barrier: Barrier,
    start: OnceLock<Instant>,
    /// Results of all threads since the last report of a second.
    second: Mutex<Tally>,
    stop: &'a AtomicBool,
}

struct Thread<'a, F> {
    plan: &'a Plan,
    shared: &'a Shared<'a>,
    fleet: F,
    connections: Vec<Connection>,
    /// Index of the first connection over all threads, from which source addresses derive.
    first: usize,
    /// Idle connections, longest idle first; may contain closed ones.
    free: VecDeque<usize>,
    /// Connections to open, each with the earliest time to do so.
    closed: VecDeque<(usize, Duration)>,
    opening: usize,
    busy: usize,
    poller: Poller,
    seen: Tally,
    piece: Vec<u8>,
    epoch: Instant,
    published: Duration,
    looked: Duration,
}

impl<'a, F: Fleet> Thread<'a, F> {
    fn new(
        plan: &'a Plan,
        fleet: F,
        connections: std::ops::Range<usize>,
        shared: &'a Shared<'a>,
    ) -> io::Result<Self> {
        let seen = Tally::new(fleet.operations());
        let count = connections.len();
        Ok(Self {
            plan,
            shared,
            fleet,
            first: connections.start,
            connections: std::iter::repeat_with(Connection::default)
                .take(count)
                .collect(),
            free: VecDeque::with_capacity(count),
            closed: (0..count).map(|index| (index, Duration::ZERO)).collect(),
            opening: 0,
            busy: 0,
            poller: Poller::new()?,
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
        let opened = self.open_all();
        // A thread that has failed must not block the others at the barrier.
        self.shared.barrier.wait();
        opened?;
        self.epoch = *self.shared.start.get_or_init(Instant::now);
        (self.looked, self.published) = (Duration::ZERO, Duration::ZERO);
        for (_, not_before) in &mut self.closed {
            *not_before = Duration::ZERO;
        }
        let mut over = None;
        let mut keys = Vec::new();
        loop {
            let now = self.now();
            if over.is_none() {
                if self.shared.stop.load(Ordering::Relaxed) {
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
            self.poller.wait(wait, &mut keys)?;
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
        while (!self.closed.is_empty() || self.opening > 0)
            && self.now() < self.plan.timeout
            && !self.shared.stop.load(Ordering::Relaxed)
        {
            self.open()?;
            self.poller.wait(TICK, &mut keys)?;
            for key in keys.drain(..) {
                self.ready(key)?;
            }
        }
        let missing = self.closed.len() + self.opening;
        self.seen.failures.connect = u64::try_from(missing).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Starts opening closed connections.
    fn open(&mut self) -> io::Result<()> {
        let now = self.now();
        while self.opening < OPENING_MAX
            && let Some(&(index, not_before)) = self.closed.front()
            && not_before <= now
        {
            self.closed.pop_front();
            let sources = usize::from(self.plan.sources.max(1));
            let source = (self.first + index) % sources + 1;
            let source = u8::try_from(source)
                .ok()
                .filter(|_| takes_sources(self.plan.address));
            match connect(self.plan.address, source) {
                Ok(stream) => {
                    self.poller.add(&stream, index)?;
                    self.opening += 1;
                    self.connections[index].state = State::Opening(stream, now);
                }
                Err(_) => self.closed.push_back((index, now + RETRY)),
            }
        }
        Ok(())
    }

    /// Sends the requests that are due, while connections are idle. Returns `false` if more may be
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
                // The connection was closed while in the queue.
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
                self.poller.modify(stream, index, writes)
            }
            State::Closed | State::Opening(..) => Ok(()),
        }
    }

    /// Handles an event on a socket.
    fn ready(&mut self, index: usize) -> io::Result<()> {
        let now = self.now();
        let connection = &mut self.connections[index];
        if let State::Opening(stream, _) = &connection.state {
            self.opening -= 1;
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
            self.closed.push_back((index, now + RETRY));
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
                    self.closed.push_back((index, now));
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

    /// Handles the loss of a connection, which fails its request.
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
            State::Opening(..) => self.opening -= 1,
            State::Closed => return,
        }
        self.connections[index].request.clear();
        self.closed.push_back((index, not_before));
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
            self.publish();
        }
        Ok(())
    }

    /// Adds the results to those of all threads.
    fn publish(&mut self) {
        if let Ok(mut second) = self.shared.second.lock() {
            second.add(&self.seen);
        }
        self.seen.clear();
    }

    fn end(&mut self, over: Duration) {
        let mut request = Vec::new();
        while self.fleet.next_due().is_some_and(|due| due < over) {
            request.clear();
            self.fleet.ask(&mut request);
            self.seen.failures.unsent += 1;
        }
        self.seen.connections = self.connections.len() - self.closed.len() - self.opening;
        // Requests that are still in flight here have reached their timeout.
        self.seen.failures.timeout += u64::try_from(self.busy).unwrap_or(u64::MAX);
        self.publish();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Closed,
    Malformed,
    Timeout,
    TurnedAway,
}
