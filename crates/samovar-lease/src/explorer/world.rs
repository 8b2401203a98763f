//! [`World`]: a state of all nodes, publishers and the database.

use std::time::Duration;

use crate::node::{Pass, Stage};
use crate::{
    Generation, Moment, Node, Publisher, Renewals, RowId, Rows, Seq, Snapshot, Times, Watch,
};

/// The present, in every state. A tick makes all other moments earlier instead.
pub(super) const NOW: Moment = Moment(Duration::from_secs(100));

/// Intervals in ticks of a second.
pub(super) const TIMES: Times = Times {
    lease: Duration::from_secs(1),
    wait: Duration::from_secs(2),
    renewal: Duration::from_secs(1),
};

/// A rule of the protocol that is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sabotage {
    /// A pass reads the changes before it renews.
    ReadBeforeRenew,
    /// The node answers as soon as it has renewed, before it has applied the changes.
    AnswerBeforeApplied,
    /// The node answers as soon as it has its row, before it has read the changes.
    AnswerAtJoining,
    /// The row says that changes are seen before they are applied.
    ConfirmBeforeApplied,
    /// The lease counts from the result of the renewal.
    LeaseFromResult,
    /// A publisher does not wait.
    PublisherDoesNotWait,
    /// A publisher waits only for the nodes that it has notified successfully.
    WaitOnlyForNotified,
    /// A publisher looks at the rows before its commit.
    LookBeforeCommit,
    /// A publisher stops waiting before the leases end.
    WaitTooShort,
    /// A publisher does not wait in a generation that is not aged.
    YoungGenerationTrusted,
    /// The mark "aged" is set at once.
    AgedAtOnce,
    /// A node whose row has vanished inserts it again and goes on.
    VanishedRowInserted,
    /// A row is inserted in another generation than that of the snapshot.
    JoinInAnyGeneration,
    /// Identifiers of rows start again in each generation.
    RowIdsRestart,
    /// Rows are marked as lapsed although they were renewed since the observation.
    LapsedUnconditionally,
    /// A renewal does not remove the mark "lapsed".
    LapsedForEver,
    /// A node deletes its row and answers until the lease would have ended.
    AnswerAfterLeaving,
    /// A node does not notice that changes which it has not read were deleted.
    DeletedChangesIgnored,
}

/// What may happen in a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) nodes: usize,
    /// The changes, one a publisher: which path, and whether it exists afterwards.
    pub(super) changes: &'static [(usize, bool)],
    /// How often a node may crash, and start again.
    pub(super) crashes: u8,
    /// How often a statement may fail, with its result unknown.
    pub(super) failures: u8,
    /// How often the database may forget its nodes.
    pub(super) failovers: u8,
    /// How many commits a failover may lose.
    pub(super) lost_commits: usize,
    /// How often a node may leave.
    pub(super) leaves: u8,
    /// How often old changes may be deleted.
    pub(super) prunes: u8,
    /// Whether nodes observe each other.
    pub(super) is_watched: bool,
    pub(super) sabotage: Option<Sabotage>,
}

pub(super) const QUIET: Setup = Setup {
    nodes: 2,
    changes: &[(0, true)],
    crashes: 0,
    failures: 0,
    failovers: 0,
    lost_commits: 0,
    leaves: 0,
    prunes: 0,
    is_watched: false,
    sabotage: None,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    // The database.
    /// The publishers whose commits it has, in order.
    pub(super) log: Vec<usize>,
    /// How many of the first changes were deleted.
    pub(super) pruned: usize,
    pub(super) generation: Generation,
    pub(super) is_aged: bool,
    /// Ticks until the generation is aged, if nodes do not observe each other.
    pub(super) young_ticks: u64,
    pub(super) rows: Vec<Row>,
    pub(super) next_row: i64,

    pub(super) members: Vec<Member>,
    pub(super) writers: Vec<Writer>,
    /// The commit that was acknowledged last, for each path.
    pub(super) acknowledged: [Option<usize>; 2],

    // What may still happen.
    pub(super) crashes: u8,
    pub(super) failures: u8,
    pub(super) failovers: u8,
    pub(super) leaves: u8,
    pub(super) prunes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) id: RowId,
    pub(super) seen: Seq,
    pub(super) renewals: Renewals,
    pub(super) is_lapsed: bool,
    /// Whether the last notification has reached the node, for a sabotage.
    pub(super) is_notified: bool,
}

/// A node with its catalog.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) node: Node,
    pub(super) catalog: [bool; 2],
    /// The result of a statement that the database has executed.
    pub(super) result: Option<Outcome>,
    /// What a sabotaged pass has read before its renewal.
    pub(super) read_early: Option<Found>,
    /// A lease by a sabotaged rule.
    pub(super) wrong_lease: Option<Moment>,
    pub(super) watch: Watch,
    /// A row to be marked as lapsed, and a generation to be marked as aged.
    pub(super) lapsed: Option<(RowId, Renewals)>,
    pub(super) aged: Option<Generation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Loaded(Snapshot, [bool; 2]),
    Joined(Moment, Option<RowId>),
    Renewed(Moment, bool),
    Read(Found),
    Confirmed(bool),
    Left,
}

/// Changes, and the number of the last; `None`: outdated.
pub(super) type Found = Option<(Vec<(usize, bool)>, Seq)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Writer {
    /// Nothing is committed. With what a sabotaged publisher has seen before.
    Ready(Option<Rows>),
    Committed(Publisher, Option<Rows>),
    Looked(Publisher, Rows),
    Done,
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let member = Member::new();
        Self {
            log: Vec::new(),
            pruned: 0,
            generation: Generation(1),
            // The first generation has no predecessor whose leases could live.
            is_aged: true,
            young_ticks: 0,
            rows: Vec::new(),
            next_row: 1,
            members: vec![member; setup.nodes],
            writers: vec![Writer::Ready(None); setup.changes.len()],
            acknowledged: [None; 2],
            crashes: setup.crashes,
            failures: setup.failures,
            failovers: setup.failovers,
            leaves: setup.leaves,
            prunes: setup.prunes,
        }
    }

    /// Returns the paths that exist in the database.
    pub(super) fn content(&self, setup: &Setup) -> [bool; 2] {
        let mut content = [false; 2];
        for writer in &self.log {
            let (path, exists) = setup.changes[*writer];
            content[path] = exists;
        }
        content
    }

    /// Returns whether a node answers wrongly: from a catalog without an acknowledged change.
    pub(super) fn is_wrong(&self, setup: &Setup) -> bool {
        self.members.iter().any(|member| {
            member.answers()
                && self
                    .acknowledged
                    .iter()
                    .enumerate()
                    .any(|(path, position)| {
                        let Some(position) = *position else {
                            return false;
                        };
                        let later = &self.log[position + 1..];
                        let changes_again =
                            later.iter().any(|writer| setup.changes[*writer].0 == path);
                        let exists = setup.changes[self.log[position]].1;
                        !changes_again && member.catalog[path] != exists
                    })
        })
    }

    /// Lets a tick pass: all moments become earlier.
    pub(super) fn tick(&mut self) {
        for member in &mut self.members {
            member.tick();
        }
        self.is_aged |= self.young_ticks == 1;
        self.young_ticks = self.young_ticks.saturating_sub(1);
        for writer in &mut self.writers {
            if let Writer::Committed(publisher, _) | Writer::Looked(publisher, _) = writer
                && let Some(since) = &mut publisher.since
            {
                *since = earlier(*since, TIMES.wait);
            }
        }
    }

    /// Makes states equal that differ only in what has no effect.
    pub(super) fn simplify(&mut self) {
        // Numbers of renewals are compared with those that were observed; only their order matters.
        for row in &mut self.rows {
            let mut known = vec![row.renewals];
            for member in &self.members {
                known.extend(
                    member
                        .watch
                        .rows
                        .get(&row.id)
                        .map(|(renewals, _)| *renewals),
                );
                known.extend(
                    member
                        .lapsed
                        .filter(|lapsed| lapsed.0 == row.id)
                        .map(|lapsed| lapsed.1),
                );
            }
            known.sort_unstable();
            known.dedup();
            let rank = |renewals: &mut Renewals| {
                let rank = known
                    .iter()
                    .position(|known| known == renewals)
                    .unwrap_or(0);
                *renewals = Renewals(i64::try_from(rank).unwrap());
            };
            rank(&mut row.renewals);
            for member in &mut self.members {
                if let Some((renewals, _)) = member.watch.rows.get_mut(&row.id) {
                    rank(renewals);
                }
                if let Some((id, renewals)) = &mut member.lapsed
                    && *id == row.id
                {
                    rank(renewals);
                }
            }
        }
        // Nodes differ in nothing but their states.
        self.members.sort_by_cached_key(|member| {
            use std::hash::{DefaultHasher, Hash as _, Hasher as _};
            let mut hasher = DefaultHasher::new();
            member.hash(&mut hasher);
            hasher.finish()
        });
    }
}

impl Member {
    pub(super) fn new() -> Self {
        Self {
            node: Node::new(TIMES),
            catalog: [false; 2],
            result: None,
            read_early: None,
            wrong_lease: None,
            watch: Watch::new(TIMES),
            lapsed: None,
            aged: None,
        }
    }

    /// Returns whether the node answers from its catalog.
    pub(super) fn answers(&self) -> bool {
        let lives = |lease: Option<Moment>| lease.is_some_and(|lease| lease > NOW);
        lives(self.node.lease()) || lives(self.wrong_lease)
    }

    fn tick(&mut self) {
        let lease = |lease: &mut Option<Moment>| {
            *lease = lease
                .map(|at| earlier(at, Duration::ZERO))
                .filter(|at| *at > NOW);
        };
        lease(&mut self.node.lease);
        lease(&mut self.wrong_lease);
        if let Stage::Member { pass, due, .. } = &mut self.node.stage {
            *due = earlier(*due, Duration::ZERO);
            if let Pass::Read(Some(sent)) | Pass::Confirm(Some(sent)) = pass {
                *sent = earlier(*sent, TIMES.lease);
            }
        }
        if let Some(Outcome::Joined(sent, _) | Outcome::Renewed(sent, _)) = &mut self.result {
            *sent = earlier(*sent, TIMES.lease);
        }
        if let Some((_, since)) = &mut self.watch.generation {
            *since = earlier(*since, TIMES.wait);
        }
        for (_, since) in self.watch.rows.values_mut() {
            *since = earlier(*since, TIMES.wait);
        }
    }
}

/// Returns the moment a tick earlier, but at most `age_max` before now: what is older has the same
/// effect.
fn earlier(moment: Moment, age_max: Duration) -> Moment {
    let oldest = Moment(NOW.0 - age_max);
    Moment(moment.0.saturating_sub(Duration::from_secs(1))).max(oldest)
}
