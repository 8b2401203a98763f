//! [`Node`]: what a node does next, and how long it may answer from memory.

use std::time::Duration;

use crate::{Generation, Moment, RowId, Seq, Times};

/// The state of a node in the protocol. It does no I/O: the caller runs the statement that
/// [`next`](Self::next) names, and reports its result with the function of the same step, or
/// [`failed`](Self::failed).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    times: Times,
    pub(crate) stage: Stage,
    /// The end of the lease.
    pub(crate) lease: Option<Moment>,
    pub(crate) is_notified: bool,
    is_leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The catalog has to be loaded.
    Empty,
    /// The catalog is of this snapshot; there is no row yet.
    Loaded(Snapshot),
    /// There is a row.
    Member {
        row: RowId,
        seen: Seq,
        /// The greatest number that was confirmed.
        confirmed: Seq,
        pass: Pass,
        /// When the next renewal is due.
        due: Moment,
    },
    Left,
}

/// How far the present pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// There is none.
    Rest,
    /// The next step is to read. With the moment before the renewal, if the pass has renewed.
    Read(Option<Moment>),
    /// The next step is to confirm.
    Confirm(Option<Moment>),
}

/// A snapshot of the database, from which the catalog was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The generation.
    pub generation: Generation,
    /// The number of the last commit in it.
    pub seq: Seq,
}

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Replace the catalog with the content of one snapshot of the database. Insert the row of the
    /// generation first if it is missing. Then call [`Node::loaded`].
    Load,
    /// Insert a row with this `seen`, if the generation is still that of the snapshot, and commit.
    /// Then call [`Node::joined`].
    Join(Snapshot),
    /// Increment `renewals` of the row and remove its mark "lapsed", and commit. Then call
    /// [`Node::renewed`].
    Renew(RowId),
    /// Read from one snapshot: whether the row exists, and the changes after this number. Apply
    /// them to the catalog. Then call [`Node::read`].
    Read(RowId, Seq),
    /// Set `seen` of the row, and commit. Then call [`Node::confirmed`].
    Confirm(RowId, Seq),
    /// Nothing, until this moment or a notification ([`Node::notified`]).
    Rest(Moment),
    /// Delete the row, and commit. Then call [`Node::left`].
    Leave(RowId),
    /// Nothing any more: the node has left.
    End,
}

/// What [`Step::Read`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Read {
    /// All changes after the number are applied. With the number of the last commit.
    Applied(Seq),
    /// There is no row, or changes after the number were deleted. Nothing is applied.
    Outdated,
}

impl Node {
    /// Returns a node that has not joined.
    #[must_use]
    pub const fn new(times: Times) -> Self {
        Self {
            times,
            stage: Stage::Empty,
            lease: None,
            is_notified: false,
            is_leaving: false,
        }
    }

    /// Returns until when the node may answer from its catalog. `None`: it may not.
    #[must_use]
    pub const fn lease(&self) -> Option<Moment> {
        self.lease
    }

    /// Returns the number up to which the catalog has all changes. `None`: it was not loaded.
    #[must_use]
    pub const fn seen(&self) -> Option<Seq> {
        match self.stage {
            Stage::Loaded(snapshot) => Some(snapshot.seq),
            Stage::Member { seen, .. } => Some(seen),
            Stage::Empty | Stage::Left => None,
        }
    }

    /// Returns what to do next.
    #[must_use]
    pub fn next(&self, now: Moment) -> Step {
        match &self.stage {
            Stage::Left => Step::End,
            Stage::Empty | Stage::Loaded(_) if self.is_leaving => Step::End,
            Stage::Empty => Step::Load,
            Stage::Loaded(snapshot) => Step::Join(*snapshot),
            Stage::Member { row, .. } if self.is_leaving => Step::Leave(*row),
            Stage::Member {
                row,
                seen,
                pass,
                due,
                ..
            } => match pass {
                Pass::Read(_) => Step::Read(*row, *seen),
                Pass::Confirm(_) => Step::Confirm(*row, *seen),
                Pass::Rest if now >= *due => Step::Renew(*row),
                Pass::Rest if self.is_notified => Step::Read(*row, *seen),
                Pass::Rest => Step::Rest(*due),
            },
        }
    }

    /// Reports that the catalog was loaded.
    pub fn loaded(&mut self, snapshot: Snapshot) {
        if self.stage == Stage::Empty {
            self.stage = Stage::Loaded(snapshot);
        }
    }

    /// Reports whether the row was inserted. `sent`: a moment before the statement was sent.
    pub fn joined(&mut self, sent: Moment, row: Option<RowId>) {
        let Stage::Loaded(snapshot) = self.stage else {
            return;
        };
        self.stage = match row {
            Some(row) => Stage::Member {
                row,
                seen: snapshot.seq,
                confirmed: snapshot.seq,
                pass: Pass::Read(Some(sent)),
                due: sent.after(self.times.renewal),
            },
            None => Stage::Empty,
        };
    }

    /// Reports whether there was a row to renew. `sent`: a moment before the statement was sent.
    pub fn renewed(&mut self, sent: Moment, is_there: bool) {
        if !is_there {
            return self.forget();
        }
        if let Stage::Member { pass, due, .. } = &mut self.stage {
            *pass = Pass::Read(Some(sent));
            *due = sent.after(self.times.renewal);
        }
    }

    /// Reports what was read.
    pub fn read(&mut self, found: Read) {
        let Read::Applied(last) = found else {
            return self.forget();
        };
        let Stage::Member {
            seen,
            confirmed,
            pass,
            ..
        } = &mut self.stage
        else {
            return;
        };
        *seen = last;
        self.is_notified = false;
        let sent = match *pass {
            Pass::Read(sent) | Pass::Confirm(sent) => sent,
            Pass::Rest => None,
        };
        if *seen != *confirmed {
            *pass = Pass::Confirm(sent);
            return;
        }
        *pass = Pass::Rest;
        self.extend(sent);
    }

    /// Reports whether there was a row that confirms.
    pub fn confirmed(&mut self, is_there: bool) {
        if !is_there {
            return self.forget();
        }
        if let Stage::Member {
            seen,
            confirmed,
            pass,
            ..
        } = &mut self.stage
            && let Pass::Confirm(sent) = *pass
        {
            *confirmed = *seen;
            *pass = Pass::Rest;
            self.extend(sent);
        }
    }

    /// Reports that the statement of the present step has failed, or that its outcome is unknown.
    /// The pass begins anew with a renewal. The lease lives on until its end.
    pub const fn failed(&mut self) {
        if let Stage::Member { pass, due, .. } = &mut self.stage {
            *pass = Pass::Rest;
            *due = Moment(Duration::ZERO);
        }
    }

    /// Reports a notification of a commit. It may be of any commit, or of none.
    pub const fn notified(&mut self) {
        self.is_notified = true;
    }

    /// Ends the lease at once, and lets the next step be [`Step::Leave`].
    pub const fn leave(&mut self) {
        self.is_leaving = true;
        self.lease = None;
    }

    /// Reports that the row was deleted.
    pub const fn left(&mut self) {
        self.stage = Stage::Left;
    }

    fn extend(&mut self, sent: Option<Moment>) {
        if let Some(sent) = sent
            && !self.is_leaving
        {
            self.lease = Some(sent.after(self.times.lease));
        }
    }

    fn forget(&mut self) {
        self.stage = Stage::Empty;
        self.lease = None;
    }
}
