//! [`Work`]: the turns of a processor that an assembly needs.

use std::cell::RefCell;

use crate::push::PushError;
use crate::receive::PutError;
use crate::verify::{Memory, MemoryError};

/// Function that adds a number of bytes to the work of an assembly. See [`Work::add`].
pub(super) type AddWork<'a> = &'a dyn Fn(u64) -> Result<(), MemoryError>;

/// The work of an assembly: the number of bytes that it has hashed and decompressed. Its parts
/// share one turn.
pub(super) struct Work<'a> {
    state: RefCell<State<'a>>,
}

struct State<'a> {
    memory: &'a mut dyn Memory,
    done_len: u64,
    /// The first error of [`Work::add`]. Readers may translate or hide it.
    failure: Option<MemoryError>,
}

impl<'a> Work<'a> {
    pub(super) fn new(memory: &'a mut dyn Memory) -> Self {
        Self {
            state: RefCell::new(State {
                memory,
                done_len: 0,
                failure: None,
            }),
        }
    }

    /// Called before `len` more bytes are hashed or decompressed. May wait for a turn.
    ///
    /// # Errors
    ///
    /// If the request cannot continue. [`finish`](Self::finish) then returns the reason.
    pub(super) fn add(&self, len: u64) -> Result<(), MemoryError> {
        let state = &mut *self.state.borrow_mut();
        state.done_len = state.done_len.saturating_add(len);
        state.memory.work(state.done_len).map_err(|error| {
            state.failure.get_or_insert(error);
            MemoryError::Busy
        })
    }

    /// Ends the turn.
    pub(super) fn rest(&self) {
        self.state.borrow_mut().memory.rest();
    }

    /// Ends the turn after the whole assembly. Returns its outcome, or the reason why it could not
    /// continue.
    pub(super) fn finish<T>(self, outcome: Result<T, PushError>) -> Result<T, PushError> {
        self.rest();
        match self.state.into_inner().failure {
            Some(failure) => Err(PutError::from(failure).into()),
            None => outcome,
        }
    }
}

/// Grants memory that is reserved already, and the turns of an assembly.
pub(super) struct Granted<'a> {
    memory_len: u64,
    /// Length of the content of this part so far, in bytes.
    content_len: u64,
    add_work: AddWork<'a>,
    /// Ends the turn. Does nothing if the input does not come from the client.
    rest: &'a dyn Fn(),
}

impl<'a> Granted<'a> {
    pub(super) fn new(memory_len: u64, add_work: AddWork<'a>) -> Self {
        Self::of_client(memory_len, add_work, &|| {})
    }

    /// As [`new`](Self::new), for an input that comes from the client.
    pub(super) fn of_client(memory_len: u64, add_work: AddWork<'a>, rest: &'a dyn Fn()) -> Self {
        Self {
            memory_len,
            content_len: 0,
            add_work,
            rest,
        }
    }
}

impl Memory for Granted<'_> {
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError> {
        match len <= self.memory_len {
            true => Ok(()),
            false => Err(MemoryError::Busy),
        }
    }

    fn work(&mut self, content_len: u64) -> Result<(), MemoryError> {
        let added = content_len.saturating_sub(self.content_len);
        self.content_len = content_len;
        (self.add_work)(added)
    }

    fn rest(&mut self) {
        (self.rest)();
    }
}
