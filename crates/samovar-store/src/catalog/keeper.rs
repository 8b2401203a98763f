//! A thread that checks the database file periodically, on behalf of callers that only read
//! freshness tokens.

use std::sync::Weak;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::database::Database;
use crate::error::StoreError;

const INTERVAL: Duration = Duration::from_millis(100);

/// Stack size in bytes: SQLite's stack frames are small.
const STACK_LEN: usize = 512 * 1024;

/// The watching thread. Dropping it stops the thread.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Sender that only signals the end: dropping it wakes the thread, which then ends. `None` only
    /// during drop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(database: Weak<Database>) -> Result<Self, StoreError> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store-keeper".into())
            .stack_size(STACK_LEN)
            .spawn(move || {
                while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    let Some(database) = database.upgrade() else {
                        return;
                    };
                    database.recheck();
                }
            })
            .map_err(|error| StoreError::io("starting a thread", &error))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the panic hook has already reported that.
            let _ended = thread.join();
        }
    }
}
