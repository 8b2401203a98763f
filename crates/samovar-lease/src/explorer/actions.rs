//! What may happen in a state, and the state that follows.

use super::world::{Found, Member, NOW, Outcome, Row, Sabotage, Setup, TIMES, World, Writer};
use crate::{
    Generation, Publisher, Read, Renewals, RowId, Rows, Seq, Snapshot, Step, Verdict, Watch,
};

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// The clocks advance.
    Tick,
    /// The database executes the next statement of a node. A node that rests was notified, of
    /// whatever.
    Execute(usize),
    /// What was read reaches the node. Other results reach it at once: later makes no difference.
    Deliver(usize),
    /// The statement fails before it was executed.
    Fail(usize),
    /// The statement is executed, and its result is lost.
    Lose(usize),
    /// The process ends without a word, and starts again.
    Crash(usize),
    Leave(usize),
    /// The node reads the rows of all nodes.
    Observe(usize),
    /// The database executes the marking of what the node has observed.
    Mark(usize),
    /// A publisher looks at the rows before its commit, for a sabotage.
    LookEarly(usize),
    Commit(usize),
    Look(usize),
    Judge(usize),
    /// The database forgets its nodes, and loses the last commits.
    Failover(usize),
    /// The changes so far are deleted.
    Prune,
}

impl World {
    /// Calls `visit` with each event that may happen now.
    pub(super) fn actions(&self, setup: &Setup, visit: &mut impl FnMut(Action)) {
        visit(Action::Tick);
        for (index, member) in self.members.iter().enumerate() {
            self.actions_of_member(setup, index, member, visit);
        }
        for (index, writer) in self.writers.iter().enumerate() {
            match writer {
                Writer::Ready(early) => {
                    if setup.sabotage == Some(Sabotage::LookBeforeCommit) && early.is_none() {
                        visit(Action::LookEarly(index));
                    } else if self.may_commit(setup, index) {
                        visit(Action::Commit(index));
                    }
                }
                Writer::Committed(..) => visit(Action::Look(index)),
                Writer::Looked(..) => visit(Action::Judge(index)),
                Writer::Done => {}
            }
        }
        if self.failovers > 0 {
            for lost in 0..=setup.lost_commits.min(self.log.len()) {
                visit(Action::Failover(lost));
            }
        }
        if self.prunes > 0 && self.pruned < self.log.len() {
            visit(Action::Prune);
        }
    }

    fn actions_of_member(
        &self,
        setup: &Setup,
        index: usize,
        member: &Member,
        visit: &mut impl FnMut(Action),
    ) {
        match (&member.result, member.node.next(NOW)) {
            (Some(_), _) => visit(Action::Deliver(index)),
            (None, Step::End) => {}
            (None, _) => visit(Action::Execute(index)),
        }
        if self.failures > 0 && member.node.next(NOW) != Step::End {
            visit(Action::Fail(index));
            visit(Action::Lose(index));
        }
        if self.crashes > 0 {
            visit(Action::Crash(index));
        }
        if self.leaves > 0 && member.node.next(NOW) != Step::End {
            visit(Action::Leave(index));
        }
        if setup.is_watched {
            visit(Action::Observe(index));
            if member.lapsed.is_some() || member.aged.is_some() {
                visit(Action::Mark(index));
            }
        }
    }

    /// Returns whether the change of a publisher makes sense: another that removes the path comes
    /// after the one that adds it.
    fn may_commit(&self, setup: &Setup, index: usize) -> bool {
        let (path, exists) = setup.changes[index];
        self.content(setup)[path] != exists
    }

    /// Returns the state after an event.
    pub(super) fn after(&self, setup: &Setup, action: Action) -> Self {
        let mut world = self.clone();
        match action {
            Action::Tick => world.tick(),
            Action::Execute(index) => {
                world.execute(setup, index);
                let is_read = matches!(
                    world.members[index].result,
                    Some(Outcome::Loaded(..) | Outcome::Read(_))
                );
                if !is_read && setup.sabotage != Some(Sabotage::LeaseFromResult) {
                    world.deliver(setup, index);
                }
            }
            Action::Deliver(index) => world.deliver(setup, index),
            Action::Fail(index) => {
                world.failures -= 1;
                let member = &mut world.members[index];
                member.result = None;
                member.node.failed();
            }
            Action::Lose(index) => {
                world.failures -= 1;
                if world.members[index].result.is_none() {
                    world.execute(setup, index);
                }
                let member = &mut world.members[index];
                member.result = None;
                member.node.failed();
            }
            Action::Crash(index) => {
                world.crashes -= 1;
                world.members[index] = Member::new();
            }
            Action::Leave(index) => {
                world.leaves -= 1;
                let member = &mut world.members[index];
                if setup.sabotage == Some(Sabotage::AnswerAfterLeaving) {
                    member.wrong_lease = member.node.lease();
                }
                member.result = None;
                member.node.leave();
            }
            Action::Observe(index) => world.observe(setup, index),
            Action::Mark(index) => world.mark(setup, index),
            Action::LookEarly(index) => {
                world.writers[index] = Writer::Ready(Some(world.look(setup)));
            }
            Action::Commit(index) => world.commit(index),
            Action::Look(index) => {
                let rows = world.look(setup);
                if let Writer::Committed(publisher, early) = world.writers[index].clone() {
                    world.writers[index] = Writer::Looked(publisher, early.unwrap_or(rows));
                }
                if setup.failovers == 0 {
                    world.judge(setup, index);
                }
            }
            Action::Judge(index) => world.judge(setup, index),
            Action::Failover(lost) => world.fail_over(setup, lost),
            Action::Prune => {
                world.prunes -= 1;
                world.pruned = world.log.len();
            }
        }
        world.simplify();
        world
    }

    fn last(&self) -> Seq {
        Seq(i64::try_from(self.log.len()).unwrap())
    }

    fn row(&mut self, id: RowId) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.id == id)
    }

    fn insert(&mut self, id: RowId, seen: Seq) {
        self.rows.push(Row {
            id,
            seen,
            renewals: Renewals(0),
            is_lapsed: false,
            is_notified: false,
        });
    }

    // Long: one arm for each step.
    fn execute(&mut self, setup: &Setup, index: usize) {
        let is = |sabotage| setup.sabotage == Some(sabotage);
        if let Step::Rest(_) = self.members[index].node.next(NOW) {
            self.members[index].node.notified();
            if let Step::Read(id, _) = self.members[index].node.next(NOW)
                && let Some(row) = self.row(id)
            {
                row.is_notified = is(Sabotage::WaitOnlyForNotified);
            }
        }
        let result = match self.members[index].node.next(NOW) {
            Step::Load => {
                let snapshot = Snapshot {
                    generation: self.generation,
                    seq: self.last(),
                };
                Outcome::Loaded(snapshot, self.content(setup))
            }
            Step::Join(snapshot) => {
                let may_join =
                    snapshot.generation == self.generation || is(Sabotage::JoinInAnyGeneration);
                let row = may_join.then(|| {
                    let id = RowId(self.next_row);
                    self.next_row += 1;
                    self.insert(id, snapshot.seq);
                    id
                });
                Outcome::Joined(NOW, row)
            }
            Step::Renew(id) => {
                if is(Sabotage::ReadBeforeRenew) && self.members[index].read_early.is_none() {
                    let seen = self.members[index].node.seen().unwrap();
                    self.members[index].read_early = Some(self.read(setup, id, seen));
                    return;
                }
                if is(Sabotage::VanishedRowInserted) && self.row(id).is_none() {
                    self.insert(id, self.members[index].node.seen().unwrap());
                }
                let row = self.row(id);
                let is_there = row.is_some();
                if let Some(row) = row {
                    row.renewals.0 += 1;
                    row.is_lapsed &= is(Sabotage::LapsedForEver);
                }
                Outcome::Renewed(NOW, is_there)
            }
            Step::Read(id, after) => {
                let found = match self.members[index].read_early.take() {
                    Some(found) => found,
                    None => self.read(setup, id, after),
                };
                if is(Sabotage::ConfirmBeforeApplied)
                    && let Some((_, last)) = &found
                    && let Some(row) = self.row(id)
                {
                    row.seen = *last;
                }
                Outcome::Read(found)
            }
            Step::Confirm(id, seen) => {
                let row = self.row(id);
                let is_there = row.is_some();
                if let Some(row) = row {
                    row.seen = seen;
                }
                Outcome::Confirmed(is_there)
            }
            Step::Leave(id) => {
                self.rows.retain(|row| row.id != id);
                Outcome::Left
            }
            Step::Rest(_) | Step::End => return,
        };
        self.members[index].result = Some(result);
    }

    fn read(&self, setup: &Setup, id: RowId, after: Seq) -> Found {
        let after = usize::try_from(after.0).unwrap();
        let ignores_pruned = setup.sabotage == Some(Sabotage::DeletedChangesIgnored);
        let is_member = self.rows.iter().any(|row| row.id == id);
        if !is_member || (after < self.pruned && !ignores_pruned) {
            return None;
        }
        let changes = self.log.iter().skip(after.max(self.pruned));
        let changes = changes.map(|writer| setup.changes[*writer]).collect();
        Some((changes, self.last().max(Seq(i64::try_from(after).unwrap()))))
    }

    fn deliver(&mut self, setup: &Setup, index: usize) {
        let is = |sabotage| setup.sabotage == Some(sabotage);
        let member = &mut self.members[index];
        let late = |sent| match is(Sabotage::LeaseFromResult) {
            true => NOW,
            false => sent,
        };
        match member.result.take() {
            Some(Outcome::Loaded(snapshot, catalog)) => {
                member.catalog = catalog;
                member.node.loaded(snapshot);
            }
            Some(Outcome::Joined(sent, row)) => {
                if row.is_some() && is(Sabotage::AnswerAtJoining) {
                    member.wrong_lease = Some(sent.after(TIMES.lease));
                }
                member.node.joined(late(sent), row);
            }
            Some(Outcome::Renewed(sent, is_there)) => {
                if is_there && is(Sabotage::AnswerBeforeApplied) {
                    member.wrong_lease = Some(sent.after(TIMES.lease));
                }
                member.node.renewed(late(sent), is_there);
            }
            Some(Outcome::Read(Some((changes, last)))) => {
                for (path, exists) in changes {
                    member.catalog[path] = exists;
                }
                member.node.read(Read::Applied(last));
            }
            Some(Outcome::Read(None)) => member.node.read(Read::Outdated),
            Some(Outcome::Confirmed(is_there)) => member.node.confirmed(is_there),
            Some(Outcome::Left) => member.node.left(),
            None => {}
        }
    }

    fn observe(&mut self, setup: &Setup, index: usize) {
        let member = &mut self.members[index];
        let rows = self.rows.iter().filter(|row| !row.is_lapsed);
        let rows = rows.map(|row| (row.id, row.renewals));
        let found = member.watch.observe(NOW, self.generation, rows);
        member.lapsed = found.lapsed.first().copied();
        member.aged = found.aged.filter(|_| !self.is_aged);
        if setup.sabotage == Some(Sabotage::AgedAtOnce) {
            member.aged = Some(self.generation).filter(|_| !self.is_aged);
        }
    }

    fn mark(&mut self, setup: &Setup, index: usize) {
        let always = setup.sabotage == Some(Sabotage::LapsedUnconditionally);
        let member = &mut self.members[index];
        let (lapsed, aged) = (member.lapsed.take(), member.aged.take());
        member.watch = Watch::new(TIMES);
        if let Some((id, renewals)) = lapsed
            && let Some(row) = self.row(id)
            && (row.renewals == renewals || always)
        {
            row.is_lapsed = true;
        }
        self.is_aged |= aged == Some(self.generation);
    }

    fn look(&self, setup: &Setup) -> Rows {
        let only_notified = setup.sabotage == Some(Sabotage::WaitOnlyForNotified);
        let rows = self.rows.iter().filter(|row| !row.is_lapsed);
        let rows = rows.filter(|row| !only_notified || row.is_notified);
        Rows {
            generation: self.generation,
            is_aged: self.is_aged || setup.sabotage == Some(Sabotage::YoungGenerationTrusted),
            least_seen: rows.map(|row| row.seen).min(),
        }
    }

    fn commit(&mut self, index: usize) {
        self.log.push(index);
        if let Writer::Ready(early) = self.writers[index] {
            let early = early.map(|rows| Rows {
                generation: self.generation,
                ..rows
            });
            let publisher = Publisher::new(TIMES, self.last(), self.generation);
            self.writers[index] = Writer::Committed(publisher, early);
        }
    }

    fn judge(&mut self, setup: &Setup, index: usize) {
        let Writer::Looked(mut publisher, rows) = self.writers[index].clone() else {
            return;
        };
        let verdict = match setup.sabotage {
            Some(Sabotage::PublisherDoesNotWait) => Verdict::Acknowledge,
            _ => publisher.check(NOW, &rows),
        };
        let position = self.log.iter().position(|writer| *writer == index);
        let is_too_short = setup.sabotage == Some(Sabotage::WaitTooShort)
            && publisher.since.is_some_and(|since| NOW >= since);
        self.writers[index] = match verdict {
            Verdict::Acknowledge => self.acknowledge(setup, index, position),
            Verdict::Wait(_) if is_too_short => self.acknowledge(setup, index, position),
            Verdict::Wait(_) => Writer::Committed(publisher, None),
            Verdict::Replaced => match position {
                Some(position) => {
                    let seq = Seq(i64::try_from(position + 1).unwrap());
                    Writer::Committed(Publisher::new(TIMES, seq, rows.generation), None)
                }
                None => Writer::Ready(None),
            },
        };
    }

    fn acknowledge(&mut self, setup: &Setup, index: usize, position: Option<usize>) -> Writer {
        let (path, _) = setup.changes[index];
        // A commit that was lost between the look and the acknowledgement is the operator's loss.
        self.acknowledged[path] = self.acknowledged[path].max(position);
        Writer::Done
    }

    fn fail_over(&mut self, setup: &Setup, lost: usize) {
        self.failovers -= 1;
        self.log.truncate(self.log.len() - lost);
        self.pruned = self.pruned.min(self.log.len());
        self.generation = Generation(self.generation.0 + 1);
        self.is_aged = false;
        if !setup.is_watched {
            self.young_ticks = TIMES.wait.as_secs();
        }
        self.rows.clear();
        if setup.sabotage == Some(Sabotage::RowIdsRestart) {
            self.next_row = 1;
        }
        for acknowledged in &mut self.acknowledged {
            *acknowledged = acknowledged.filter(|position| *position < self.log.len());
        }
    }
}
