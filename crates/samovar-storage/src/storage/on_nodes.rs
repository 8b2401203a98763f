//! [`NodeStatistics`]: what a node knows of itself and of the other nodes.

use std::sync::Mutex;
use std::time::Duration;

use samovar_lease::{RowId, Times};

use crate::catalog::Catalog;
use crate::metadata::{Database, NodeState};
use crate::sql::TransactionStatistics;
use crate::storage::counters::locked;

/// What a node knows of itself and of the other nodes.
#[derive(Debug, Clone, Default)]
pub struct NodeStatistics {
    /// Name of this node.
    pub name: String,
    /// Whether it has a lease, and so answers from memory.
    pub has_lease: bool,
    /// Time since the last renewal of the lease; `None` if there was none yet.
    pub lease_age: Option<Duration>,
    /// Number of commits whose changes it has not confirmed, when it last knew; `None` if it has
    /// not joined yet.
    pub behind: Option<u64>,
    /// Commits of this process that have waited for all nodes.
    pub publish_waits: TransactionStatistics,
    /// The other nodes, as it has last seen them.
    pub others: Vec<NodeState>,
}

/// What the thread of a node has last seen.
#[derive(Debug, Default)]
pub(crate) struct SeenNodes(Mutex<Option<Seen>>);

#[derive(Debug, Clone)]
struct Seen {
    name: String,
    behind: Option<i64>,
    others: Vec<NodeState>,
}

impl SeenNodes {
    /// Stores the rows of all nodes. `row`: that of this node.
    pub(crate) fn set(&self, name: &str, row: Option<RowId>, nodes: Vec<NodeState>) {
        let (own, others): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .partition(|node| row.is_some_and(|row| row.0 == node.id));
        *locked(&self.0) = Some(Seen {
            name: name.to_owned(),
            behind: own.first().map(|node| node.behind),
            others,
        });
    }

    /// Returns what this node knows of itself and of the others; `None` if it is none. Never
    /// blocks.
    pub(super) fn statistics(
        &self,
        catalog: &Catalog,
        metadata: &Database,
    ) -> Option<NodeStatistics> {
        let seen = locked(&self.0).clone()?;
        let lease = catalog.lease()?;
        let waits = metadata.postgres()?.statistics().confirmations;
        Some(NodeStatistics {
            name: seen.name,
            has_lease: lease.lives(),
            lease_age: lease.age(Times::default().lease),
            behind: seen.behind.and_then(|count| u64::try_from(count).ok()),
            publish_waits: waits,
            others: seen.others,
        })
    }
}
