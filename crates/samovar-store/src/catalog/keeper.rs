//! A thread that checks the database file periodically, on behalf of callers that only read
//! freshness tokens.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::database::Database;
use crate::error::StoreError;

/// Interval of the checks once hash parts are loaded.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interval of the checks while no hash parts are loaded. No caller relies on a freshness token
/// then. The checks still renew the connections to a replaced file: while none is open, another
/// process may remove the WAL.
const UNLOADED_INTERVAL: Duration = Duration::from_secs(1);

/// Stack size in bytes: SQLite's stack frames are small.
const STACK_LEN: usize = 512 * 1024;

/// A message to the thread.
#[derive(Debug, Clone, Copy)]
pub(super) enum Signal {
    /// Hash parts were loaded.
    Loaded,
    Stop,
}

/// The watching thread. Dropping it stops the thread.
#[derive(Debug)]
pub(super) struct Keeper {
    signals: Sender<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(database: &Arc<Database>) -> Result<Self, StoreError> {
        let (signals, received) = mpsc::channel();
        let database = Arc::downgrade(database);
        let recheck = move || database.upgrade().map(|database| database.recheck());
        let thread = std::thread::Builder::new()
            .name("store-keeper".into())
            .stack_size(STACK_LEN)
            .spawn(move || run(&received, recheck))
            .map_err(|error| StoreError::io("starting a thread", &error))?;
        Ok(Self {
            signals,
            thread: Some(thread),
        })
    }

    /// Returns the channel to the thread.
    pub(super) fn signals(&self) -> Sender<Signal> {
        self.signals.clone()
    }
}

/// Runs until the thread is stopped or `recheck` returns `None`.
fn run(received: &Receiver<Signal>, recheck: impl Fn() -> Option<()>) {
    let mut interval = UNLOADED_INTERVAL;
    loop {
        match received.recv_timeout(interval) {
            Ok(Signal::Loaded) => interval = INTERVAL,
            Err(RecvTimeoutError::Timeout) if recheck().is_some() => {}
            Ok(Signal::Stop) | Err(_) => return,
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread has ended already if nobody receives the signal.
        self.signals.send(Signal::Stop).ok();
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the panic hook has already reported that.
            let _ended = thread.join();
        }
    }
}
