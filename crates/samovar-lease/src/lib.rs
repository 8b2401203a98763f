//! The lease protocol: how several nodes with one database answer "absent" from memory without a
//! wrong answer.
//!
//! # Theory of operation
//!
//! Each node keeps a *catalog* in memory: which paths exist. A transaction that changes what the
//! catalog has also increments `clock.seq` and writes its changes with this number to the table
//! `change`. Write transactions are serialised, so the numbers are in the order of the commits. A
//! catalog with all changes up to a number is as the database was after that commit.
//!
//! A node answers from its catalog only while its *lease* lives. It has a row in the table `node`,
//! and [`Node`] repeats this pass:
//!
//! 1. `t0` = now, on the monotonic clock of the node. **Renew**: increment `renewals` in the row.
//! 2. **Read** the changes after `seen`, and apply them to the catalog.
//! 3. **Confirm**: write the number of the last one into the row, as `seen`.
//! 4. The lease lives until `t0` + [`Times::lease`].
//!
//! Who has committed a change acknowledges it only after waiting for the nodes, by the rule of
//! [`Publisher`]: it reads the rows *after* its commit, and waits until all of them have confirmed
//! its number, but at most for [`Times::wait`], which is longer than a lease.
//!
//! **Why this is right.** Let a change be acknowledged, and a lease of a node live afterwards. The
//! lease began with a renewal. If the publisher's first look at the rows came before this renewal,
//! then so did its commit, and step 2, which comes after the renewal, has read the change. If it
//! came after the renewal, the publisher has seen the row. Either it has waited until the row
//! confirmed the change, or it has waited longer than the lease lives. The order of steps 1 and 2
//! is essential: a node that reads first and renews later might miss what is committed between the
//! two, and no publisher would wait for it.
//!
//! **Clocks.** Only intervals of the monotonic clock of one machine are measured. Times of several
//! machines, or of the database, are never compared, so a wrong clock has no effect. The lease is
//! shorter than the wait by a tenth, which is more than two clocks differ. A machine whose clock
//! stands still while other machines run, such as a virtual machine that is paused, must not
//! answer from memory when it continues: the clock has to be one that counts this time.
//!
//! **Nodes that have ended.** Each node observes the rows of all nodes ([`Watch`]). A row whose
//! `renewals` has not changed for [`Times::wait`] has no lease, and is marked as *lapsed*; no
//! publisher waits for it. The next renewal removes the mark.
//!
//! **A database that forgets the nodes.** The tables `node` and `generation` are unlogged: renewals
//! write nothing to the disk, and both tables are empty after a crash of the server and on a
//! standby that takes over. The leases that the rows stood for may live on. So the table
//! `generation` has one row with a random number, inserted by whoever finds the table empty, and
//! the mark *aged*, which is set after it was observed for [`Times::wait`]. All leases of earlier
//! generations have ended then. In a generation that is not aged, a publisher always waits the
//! whole time. A node whose row has vanished ends its lease and loads its catalog again, because a
//! standby may lack the last commits and use their numbers for others.
//!
//! **Joining.** A node first loads the catalog from one snapshot of the database, without a row, so
//! that nobody waits for it. Then it inserts its row, which is its first renewal, and continues
//! with step 2. The row is inserted only if the generation is that of the snapshot.
//!
//! **Notifications.** A node starts a pass without step 1 as soon as it is notified of a commit.
//! Notifications may be lost, late or early: nothing but speed depends on them.
//!
//! # In scope
//!
//! The decisions of a node ([`Node`]), of a publisher ([`Publisher`]), and about nodes that have
//! ended ([`Watch`]). The explorer in the tests runs these state machines against a model of the
//! database, in all orders of events, and proves that it finds the errors that the paragraphs above
//! exclude.
//!
//! # Out of scope
//!
//! SQL, threads and clocks, which the crate's `clippy.toml` disallows: time is an argument.

#![forbid(unsafe_code)]

#[cfg(test)]
mod explorer;
mod node;
mod publisher;
mod times;
mod watch;

pub use node::{Node, Read, Snapshot, Step};
pub use publisher::{Publisher, Rows, Verdict};
pub use times::{Moment, Times};
pub use watch::{Findings, Renewals, Watch};

/// Number of a commit: the value of `clock.seq` that the transaction has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Seq(pub i64);

/// Random identifier of a row in the table `node`. A sequence would not do: it starts again when
/// the database forgets the nodes, and then two nodes would renew one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub i64);

/// Random number of the time since the tables `node` and `generation` were last empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub i64);
