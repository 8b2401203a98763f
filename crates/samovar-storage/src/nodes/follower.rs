//! [`Follower`]: the thread of a node. It does the input and output of [`Node`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use samovar_lease::{Moment, Node, Read, RowId, Step, Times, Watch};

use super::apply::TableFile;
use super::{Control, NameClaim, NodeSettings, apply, statements};
use crate::catalog::Lease;
use crate::error::StorageError;
use crate::metadata::nodes;
use crate::sql::{CHANNEL, Connection, Link, mark, observe};
use crate::storage::Storage;

/// First and longest pause after a failed statement.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Maximum time to wait for a notification, after which the thread looks whether it is to end.
const WAIT: Duration = Duration::from_millis(100);

/// Interval at which the rows of all nodes are observed.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which old changes are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);

/// The thread of a node.
#[derive(Debug)]
pub(super) struct Follower {
    storage: Weak<Storage>,
    settings: NodeSettings,
    /// The claim of the name, until there is a row.
    claim: Option<NameClaim>,
    control: Arc<Control>,
    node: Node,
    /// The last row of this node.
    row: Option<RowId>,
    watch: Watch,
    /// The file from which the catalog was loaded; `None`: it was not loaded.
    file: Option<TableFile>,
    /// The connection. `None`: there was none yet, or it was lost.
    link: Option<Link>,
    pause: Duration,
    watch_due: Moment,
    prune_due: Moment,
}

impl Follower {
    pub(super) fn new(
        storage: &Arc<Storage>,
        settings: NodeSettings,
        claim: Option<NameClaim>,
        control: Arc<Control>,
    ) -> Self {
        let times = Times::default();
        Self {
            storage: Arc::downgrade(storage),
            settings,
            claim,
            control,
            node: Node::new(times),
            row: None,
            watch: Watch::new(times),
            file: None,
            link: None,
            pause: PAUSES.0,
            watch_due: Moment::default(),
            prune_due: Moment::default(),
        }
    }

    /// Follows until the node has left.
    pub(super) fn run(mut self) {
        while let Some(storage) = self.storage.upgrade() {
            if self.control.is_leaving() {
                self.node.leave();
                storage.catalog.follow().set(None);
            }
            let step = self.node.next(Lease::now());
            let outcome = match step {
                Step::End => break,
                Step::Rest(until) => {
                    let observed = self.observe(&storage);
                    // Nothing may keep the storage open while this thread waits.
                    drop(storage);
                    observed.and_then(|()| self.rest(until))
                }
                step => self.ask(&storage, |this, link| this.perform(link, &storage, step)),
            };
            match outcome {
                Ok(()) => self.pause = PAUSES.0,
                Err(_) if self.control.is_leaving() => break,
                // Who needs the database reports its errors.
                Err(_) => self.fail(),
            }
        }
        self.end();
    }

    /// Calls `ask` with the connection, which is made if there is none. Tells the readers of the
    /// catalog whether the database answers.
    fn ask(
        &mut self,
        storage: &Storage,
        ask: impl FnOnce(&mut Self, &Link) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let lease = storage.catalog.follow();
        lease.asks();
        let link = self.take_link(storage)?;
        let outcome = ask(self, &link);
        self.link = Some(link);
        if outcome.is_ok() {
            lease.is_answered();
        }
        outcome
    }

    /// Runs the statement of a step, and reports its result to the node.
    fn perform(&mut self, link: &Link, storage: &Storage, step: Step) -> Result<(), StorageError> {
        let sent = Lease::now();
        let connection = Connection::Postgres(link.session());
        match step {
            Step::Load => {
                let (snapshot, file) = apply::load(storage, link.session())?;
                self.file = Some(file);
                self.node.loaded(snapshot);
            }
            Step::Join(snapshot) => {
                let now = storage.metadata.now();
                let row = statements::join(&connection, &self.settings, snapshot, now)?;
                if row.is_some() {
                    self.claim = None;
                    self.row = row;
                }
                self.node.joined(sent, row);
            }
            Step::Renew(row) => {
                let is_there = statements::renew(&connection, row, storage.metadata.now())?;
                self.node.renewed(sent, is_there);
            }
            Step::Read(row, after) => {
                let found = match self.file {
                    Some(file) => apply::read(storage, &connection, row, after, file)?,
                    None => Read::Outdated,
                };
                self.node.read(found);
            }
            Step::Confirm(row, seen) => {
                let is_there = statements::confirm(&connection, row, seen)?;
                self.node.confirmed(is_there);
            }
            Step::Leave(row) => {
                statements::leave(&connection, row)?;
                self.node.left();
            }
            Step::Rest(_) | Step::End => {}
        }
        storage.catalog.follow().set(self.node.lease());
        Ok(())
    }

    /// Waits for a notification, at most until the given moment.
    fn rest(&mut self, until: Moment) -> Result<(), StorageError> {
        let Some(link) = &self.link else {
            return Err(StorageError::Unavailable(
                "there is no connection".to_owned(),
            ));
        };
        let limit = until.since(Lease::now()).min(WAIT);
        if !link.wait(limit)?.is_empty() {
            self.node.notified();
        }
        Ok(())
    }

    /// Observes the rows of all nodes if it is time to, and marks those that have lapsed.
    fn observe(&mut self, storage: &Storage) -> Result<(), StorageError> {
        let now = Lease::now();
        if now < self.watch_due {
            return Ok(());
        }
        self.watch_due = now.after(WATCH_INTERVAL);
        self.ask(storage, |this, link| this.observe_on(link, storage))
    }

    fn observe_on(&mut self, link: &Link, storage: &Storage) -> Result<(), StorageError> {
        let observed = observe(link.session())?;
        let rows = observed.rows.iter();
        let rows = rows.map(|(row, renewals, _)| (*row, *renewals));
        let now = Lease::now();
        let found = self.watch.observe(now, observed.generation, rows);
        mark(link.session(), &found, observed.is_aged)?;
        let connection = Connection::Postgres(link.session());
        let seen = nodes::all(&connection)?;
        storage.seen_nodes.set(&self.settings.name, self.row, seen);
        if now >= self.prune_due {
            statements::prune(&connection, storage.metadata.now())?;
            self.prune_due = now.after(PRUNE_INTERVAL);
        }
        Ok(())
    }

    /// Takes the connection out of `self`. Makes one if there is none.
    fn take_link(&mut self, storage: &Storage) -> Result<Link, StorageError> {
        if let Some(link) = self.link.take().filter(|link| !link.is_lost()) {
            return Ok(link);
        }
        let postgres = storage.metadata.postgres();
        let none = || StorageError::Database("the database is a file".to_owned());
        let link = postgres.ok_or_else(none)?.link()?;
        link.listen(CHANNEL)?;
        Ok(link)
    }

    /// Starts the pass again after a pause.
    fn fail(&mut self) {
        self.node.failed();
        self.link = self.link.take().filter(|link| !link.is_lost());
        self.control.pause(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Deletes the row if the storage was dropped before the node has left, and tells that the
    /// thread has ended.
    fn end(mut self) {
        self.node.leave();
        if let (Step::Leave(row), Some(link)) = (self.node.next(Lease::now()), &self.link) {
            // Ignore errors: the row lapses.
            statements::leave(&Connection::Postgres(link.session()), row).ok();
        }
        self.control.state().has_ended = true;
        self.control.changed.notify_all();
    }
}
