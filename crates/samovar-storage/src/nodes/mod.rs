//! Several nodes with one database: the thread by which a node follows the changes of all nodes,
//! and the list of nodes.
//!
//! The crate `samovar-lease` has the theory of operation. Here are its statements and its thread.
//! The wait of publishers is in `sql/postgres/confirmation.rs`, because each transaction with
//! changes ends with it, also those of commands.
//!
//! The thread has a connection of its own, on which it listens for notifications. Only this thread
//! changes the catalog of a node.

mod apply;
mod follower;
mod name;
mod statements;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::StorageError;
use crate::storage::Storage;

pub use self::name::{ClaimedName, NameClaim, claim_name};
pub use crate::metadata::nodes::{NodeState, list};

/// Maximum time in which a node that ends deletes its row, so that publishers do not wait for it.
const LEAVE_TIME: Duration = Duration::from_secs(2);

/// What other nodes are told about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the node.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Name of its machine.
    pub host: String,
    /// URL at which it serves; `None`: unknown.
    pub address: Option<String>,
}

/// The membership of this process. Dropping it ends the membership.
#[derive(Debug)]
pub struct Membership {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares with others.
#[derive(Debug, Default)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_leaving: bool,
    has_ended: bool,
}

/// Lets this process be a node, if several nodes share the database of the storage: from then on it
/// answers from memory, and publishers wait for it. Returns at once. Returns `None` if the database
/// is a file. `claim`: the right to have the name, which is given up once the row of the node has
/// it; `None`: this process replaces the node that has the name.
///
/// # Errors
///
/// If the thread cannot be started.
pub fn join(
    storage: &Arc<Storage>,
    settings: NodeSettings,
    claim: Option<NameClaim>,
) -> Result<Option<Membership>, StorageError> {
    if storage.metadata.postgres().is_none() {
        return Ok(None);
    }
    let control = Arc::new(Control::default());
    let follower = follower::Follower::new(storage, settings, claim, Arc::clone(&control));
    let thread = std::thread::Builder::new()
        .name("storage-node".to_owned())
        .spawn(move || follower.run())
        .map_err(|error| StorageError::file("cannot follow", "the database", error))?;
    Ok(Some(Membership {
        control,
        thread: Some(thread),
    }))
}

impl Membership {
    /// Ends the lease, and deletes the row of the node. From then on, look-ups ask the database.
    /// Waits some time for the database.
    pub fn leave(&mut self) {
        self.control.state().is_leaving = true;
        self.control.changed.notify_all();
        let deadline = Instant::now() + LEAVE_TIME;
        let mut state = self.control.state();
        while !state.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The thread ends by itself once the database answers; the row lapses.
                self.thread = None;
                return;
            }
            let waited = self.control.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by itself.
            thread.join().ok();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_leaving(&self) -> bool {
        self.state().is_leaving
    }

    /// Waits until the node is to leave, at most for this time.
    fn pause(&self, limit: Duration) {
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, limit, |state| !state.is_leaving);
        drop(waited);
    }
}
