//! The status of a server among the nodes that share a database, and its Prometheus metrics.

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// The metric families, one line each: name, type and help.
macro_rules! families {
    () => {
        "\
samovar_node_lease gauge 1 if the node answers from memory, because it has a lease, else 0.
samovar_node_lease_age_seconds gauge Time since the last renewal of the lease of the node.
samovar_node_behind_commits gauge Commits of all nodes whose changes the node has not confirmed.
samovar_node_count gauge Nodes of the database, by whether they have a lease.
samovar_node_publish_wait_seconds summary Time for which a commit waited until all nodes had \
    confirmed it.
"
    };
}
pub(crate) use families;

/// The status of a server among the nodes that share a database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Name of this node.
    pub name: String,
    /// Whether it has a lease, and so answers from memory. Without one, it asks the database for
    /// each path.
    pub has_lease: bool,
    /// Time since the last renewal of the lease, in seconds; `None` if there was none yet.
    pub lease_age_s: Option<f64>,
    /// Number of commits whose changes it has not confirmed, when it last knew; `None` if it has
    /// not joined yet.
    pub behind_count: Option<u64>,
    /// Number of commits of this node that have waited for all nodes, since the start.
    pub publish_wait_count: u64,
    /// Total time of these waits, in seconds.
    pub publish_wait_s: f64,
    /// The other nodes, as this node has last seen them.
    pub others: Vec<OtherNode>,
}

/// Another node of the database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherNode {
    /// Name of the node.
    pub name: String,
    /// Name of its machine; `None`: unknown.
    pub machine: Option<String>,
    /// Version of its program.
    pub version: String,
    /// URL at which it serves; `None`: unknown.
    pub address: Option<String>,
    /// Whether it has a lease. A node without one has ended, hangs, or does not reach the database.
    pub has_lease: bool,
    /// Number of commits whose changes it has not confirmed.
    pub behind_count: u64,
    /// Time at which it has joined, in milliseconds since 1970.
    pub joined_ms: u64,
}

/// Writes the metrics of a node.
pub(crate) fn expose(text: &mut Text, node: &NodeStatus) {
    text.put("samovar_node_lease", u8::from(node.has_lease));
    if let Some(age) = node.lease_age_s {
        text.put("samovar_node_lease_age_seconds", age);
    }
    if let Some(count) = node.behind_count {
        text.put("samovar_node_behind_commits", count);
    }
    let with_lease = node.others.iter().filter(|other| other.has_lease).count();
    let without_lease = node.others.len() - with_lease;
    let own = usize::from(node.has_lease);
    text.family("samovar_node_count")
        .put(&[("lease", "yes")], (with_lease + own) as u64)
        .put(&[("lease", "no")], (without_lease + 1 - own) as u64);
    text.family("samovar_node_publish_wait_seconds")
        .put_as("_sum", &[], node.publish_wait_s)
        .put_as("_count", &[], node.publish_wait_count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_their_leases() {
        let mut text = Text::new(families!());
        let node = NodeStatus {
            has_lease: true,
            lease_age_s: Some(0.25),
            others: vec![OtherNode::default()],
            ..NodeStatus::default()
        };
        expose(&mut text, &node);
        let text = text.into_string();
        for line in [
            "samovar_node_lease 1",
            "samovar_node_lease_age_seconds 0.25",
            "samovar_node_count{lease=\"yes\"} 1",
            "samovar_node_count{lease=\"no\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        assert!(!text.contains("samovar_node_behind_commits "), "{text}");
    }
}
