//! [`Admission`]: limits the number of uploads in progress, their memory, and the processors that
//! they use.
//!
//! Most of the memory of an upload is the window of its decompressor, which the client chooses: up
//! to 128 MiB. Each upload reserves this memory before the decompressor allocates it. Uploads wait
//! for slots and memory, first come, first served. The limits for the uploads of one token are
//! lower than the limits for all uploads together, so that one token cannot block the uploads of
//! others.
//!
//! Decompressing and hashing takes turns. An upload has no turn while it waits for its client, and
//! ends its turn after each piece of the body, or after [`TURN_LEN`] bytes of content. Tokens that
//! have waiting uploads get their turns alternately. Small NARs and narinfos need no turn.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::verify::{Memory, MemoryError};
use crate::waiting::within;

/// Maximum number of uploads in progress with one token, and of all uploads together.
const UPLOADS_MAX: (u64, u64) = (64, 512);

/// Maximum memory for decompressor windows, in bytes: of uploads with one token, and of all uploads
/// together. One token can use the largest window and still leaves memory for other tokens.
const MEMORY_MAX: (u64, u64) = (160 << 20, 256 << 20);

/// Maximum number of uploads in one queue: with one token, and in total. There are two queues, one
/// for slots and one for memory.
const WAITING_MAX: (usize, usize) = (128, 256);

/// Length of the content that an upload decompresses without a turn, in bytes.
const TURN_FREE_LEN: u64 = 1 << 20;

/// Length of the content after which an upload ends its turn, in bytes.
const TURN_LEN: u64 = 8 << 20;

/// Maximum time that an upload waits for a turn. An upload waits for one turn of each upload before
/// it, so a wait is never that long.
const TURN_PATIENCE: Duration = Duration::from_secs(3600);

/// Lets a request wait, and ends the wait if the server stops.
pub trait Wait: fmt::Debug {
    /// Calls `is_ready` repeatedly, each time with the maximum time for which that call may block,
    /// until it returns `true`.
    ///
    /// # Errors
    ///
    /// If the request cannot continue because the server is stopping.
    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()>;
}

/// The limits of all uploads into one storage.
#[derive(Debug)]
pub(crate) struct Admission {
    uploads: Gate,
    memory: Gate,
    turns: Gate,
}

impl Default for Admission {
    fn default() -> Self {
        // Half of the processors are left for downloads.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let turns = processors.div_ceil(2) as u64;
        Self {
            uploads: Gate::new(UPLOADS_MAX),
            memory: Gate::new(MEMORY_MAX),
            turns: Gate {
                alternates: true,
                waiting_max: (usize::MAX, usize::MAX),
                ..Gate::new((turns, turns))
            },
        }
    }
}

impl Admission {
    /// Admits an upload with this token. Waits at most `patience` for a slot. Later, its first
    /// request for memory waits at most `patience`, or as long as the request still has
    /// [`Patience`](crate::Patience).
    pub(crate) fn admit<'a>(
        &'a self,
        token: i64,
        wait: &'a dyn Wait,
        patience: Duration,
    ) -> Result<Admitted<'a>, MemoryError> {
        Ok(Admitted {
            slot: self.uploads.acquire(token, 1, patience, wait)?,
            gate: &self.memory,
            memory: None,
            turns: &self.turns,
            turn: None,
            wait,
            patience,
        })
    }

    pub(crate) fn usage(&self) -> Usage {
        let usage = |gate: &Gate| {
            let state = gate.state();
            (state.sum, state.waiting.len() as u64)
        };
        let (running, waiting_for_slot) = usage(&self.uploads);
        let (_, waiting_for_memory) = usage(&self.memory);
        Usage {
            running,
            running_max: self.uploads.sum_max,
            waiting: waiting_for_slot + waiting_for_memory,
        }
    }
}

/// Number of uploads in progress and waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Number of uploads in progress.
    pub(crate) running: u64,
    /// Maximum number of uploads in progress.
    pub(crate) running_max: u64,
    /// Number of uploads that wait for a slot or for memory.
    pub(crate) waiting: u64,
}

/// The slot, the memory and the turn of one upload. Dropping it releases them.
#[derive(Debug)]
pub struct Admitted<'a> {
    slot: Permit<'a>,
    gate: &'a Gate,
    memory: Option<Permit<'a>>,
    turns: &'a Gate,
    /// The present turn, and the length of the content when it began.
    turn: Option<(Permit<'a>, u64)>,
    wait: &'a dyn Wait,
    patience: Duration,
}

impl Memory for Admitted<'_> {
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError> {
        let (held, patience) = match &self.memory {
            Some(memory) => (memory.amount, Duration::ZERO),
            None => (0, self.patience),
        };
        let missing = len.saturating_sub(held);
        let mut permit = self
            .gate
            .acquire(self.slot.key, missing, patience, self.wait)?;
        match &mut self.memory {
            Some(memory) => memory.amount += std::mem::take(&mut permit.amount),
            None => self.memory = Some(permit),
        }
        Ok(())
    }

    fn work(&mut self, content_len: u64) -> Result<(), MemoryError> {
        let is_over = |(_, start): &(Permit<'_>, u64)| content_len - start >= TURN_LEN;
        if content_len < TURN_FREE_LEN || self.turn.as_ref().is_some_and(|turn| !is_over(turn)) {
            return Ok(());
        }
        self.rest();
        let (gate, key) = (self.turns, self.slot.key);
        let permit = gate.acquire_now(key, 1, TURN_PATIENCE, self.wait)?;
        self.turn = Some((permit, content_len));
        Ok(())
    }

    fn rest(&mut self) {
        self.turn = None;
    }
}

/// A limited amount (slots or bytes) that several keys share. A key is the id of a token.
#[derive(Debug)]
struct Gate {
    key_max: u64,
    sum_max: u64,
    /// Maximum number of waiting callers: with one key, and in total.
    waiting_max: (usize, usize),
    /// Whether a key that was served last lets other keys go first.
    alternates: bool,
    state: Mutex<State>,
    /// Notified when an amount is released or the queue changes.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    sum: u64,
    /// Acquired amounts by key. No amount is zero.
    held: HashMap<i64, u64>,
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
    /// The key that acquired an amount last.
    last_key: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: u64,
    key: i64,
    amount: u64,
}

impl Gate {
    fn new((key_max, sum_max): (u64, u64)) -> Self {
        Self {
            key_max,
            sum_max,
            waiting_max: WAITING_MAX,
            alternates: false,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Acquires an amount for a key. Waits at most `patience` until the amount is free, and at most
    /// as long as the request may still wait.
    fn acquire(
        &self,
        key: i64,
        amount: u64,
        patience: Duration,
        wait: &dyn Wait,
    ) -> Result<Permit<'_>, MemoryError> {
        within(patience, |patience| {
            self.acquire_now(key, amount, patience, wait)
        })
    }

    /// Acquires an amount for a key. Waits at most `patience` until the amount is free.
    fn acquire_now(
        &self,
        key: i64,
        amount: u64,
        patience: Duration,
        wait: &dyn Wait,
    ) -> Result<Permit<'_>, MemoryError> {
        let permit = || Permit {
            gate: self,
            key,
            amount,
        };
        let mut state = self.state();
        let of_key = state.waiting.iter().filter(|entry| entry.key == key);
        let (of_key_max, all_max) = self.waiting_max;
        if of_key.count() >= of_key_max || state.waiting.len() >= all_max {
            return Err(MemoryError::Busy);
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(Waiting {
            ticket,
            key,
            amount,
        });
        if self.enter(&mut state, ticket) {
            return Ok(permit());
        }
        drop(state);
        let queued = Queued { gate: self, ticket };
        self.await_turn(queued, permit, patience, wait)
    }

    /// Waits at most `patience` until the queued entry is granted its amount.
    fn await_turn<'a>(
        &'a self,
        queued: Queued<'_>,
        permit: impl Fn() -> Permit<'a>,
        patience: Duration,
        wait: &dyn Wait,
    ) -> Result<Permit<'a>, MemoryError> {
        if patience.is_zero() {
            return Err(MemoryError::Busy);
        }
        let ticket = queued.ticket;
        let deadline = Instant::now() + patience;
        let mut entered = None;
        let waited = wait.wait(&mut |slice| {
            let left = deadline.saturating_duration_since(Instant::now());
            let (mut state, _timeout) = self
                .changed
                .wait_timeout_while(self.state(), slice.min(left), |state| {
                    !self.is_next(state, ticket)
                })
                .unwrap_or_else(PoisonError::into_inner);
            entered = self.enter(&mut state, ticket).then(&permit);
            entered.is_some() || left.is_zero()
        });
        drop(queued);
        waited.map_err(MemoryError::Stopped)?;
        entered.ok_or(MemoryError::Busy)
    }

    /// Grants a waiting entry its amount and removes it from the queue, if it is the next one.
    /// Returns whether it did.
    fn enter(&self, state: &mut State, ticket: u64) -> bool {
        let is_next = self.is_next(state, ticket);
        let position = state
            .waiting
            .iter()
            .position(|entry| entry.ticket == ticket);
        if is_next && let Some(entry) = position.and_then(|at| state.waiting.remove(at)) {
            state.sum += entry.amount;
            state.last_key = Some(entry.key);
            *state.held.entry(entry.key).or_default() += entry.amount;
        }
        is_next
    }

    /// Returns whether an entry is the next one to be granted: the first one whose key stays below
    /// its limit, while the amount of this entry is free.
    fn is_next(&self, state: &State, ticket: u64) -> bool {
        let mut held_back = Vec::new();
        if self.alternates
            && let Some(last_key) = state.last_key
            && state.waiting.iter().any(|entry| entry.key != last_key)
        {
            held_back.push(last_key);
        }
        for entry in &state.waiting {
            let held = state.held.get(&entry.key).copied().unwrap_or(0);
            if held_back.contains(&entry.key) || held + entry.amount > self.key_max {
                held_back.push(entry.key);
                continue;
            }
            return entry.ticket == ticket && state.sum + entry.amount <= self.sum_max;
        }
        false
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of the queue. Dropping it removes the entry, unless it was granted.
struct Queued<'a> {
    gate: &'a Gate,
    ticket: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.waiting.retain(|entry| entry.ticket != self.ticket);
        drop(state);
        self.gate.changed.notify_all();
    }
}

/// An acquired amount. Dropping it releases the amount.
#[derive(Debug)]
struct Permit<'a> {
    gate: &'a Gate,
    key: i64,
    amount: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.sum = state.sum.saturating_sub(self.amount);
        if let Some(held) = state.held.get_mut(&self.key) {
            *held = held.saturating_sub(self.amount);
            if *held == 0 {
                state.held.remove(&self.key);
            }
        }
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
