//! The name of this server among the nodes that share a database.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::bail;
use samovar_storage::Storage;
use samovar_storage::nodes::{self, ClaimedName, NameClaim, NodeState};

use crate::config::Configuration;
use crate::log::rfc_3339;

/// Claims the name of this server among the nodes. Waits if a node with this name has ended without
/// leaving.
///
/// # Errors
///
/// Another node has the name, or the database cannot be used.
pub(super) fn claim_name(
    storage: &Storage,
    config: &Configuration,
) -> anyhow::Result<Option<NameClaim>> {
    let name = config.node_name();
    let option = config.names.option("node.name");
    let fix = match config.node {
        Some(_) => format!("set {option} to another name on one of them"),
        None => format!(
            "both have the name of their machine: set {option} to different names, or give the \
             machines different host names"
        ),
    };
    match nodes::claim_name(storage, &name)? {
        ClaimedName::Free(claim) => Ok(claim),
        ClaimedName::Taken(other) => bail!(
            "another node of this database has the name {name:?}: {}; {fix}",
            described(&other)
        ),
        ClaimedName::Starting => bail!(
            "another node of this database with the name {name:?} is starting at the same time; \
             {fix}"
        ),
    }
}

/// Returns where a node runs and since when, as a part of a sentence.
fn described(node: &NodeState) -> String {
    let host = match &node.host {
        Some(host) => format!("it runs on the machine {host:?}"),
        None => "it runs on an unknown machine".to_owned(),
    };
    let address = match &node.address {
        Some(address) => format!(", serves at {address}"),
        None => String::new(),
    };
    let joined_s = u64::try_from(node.joined_at).unwrap_or_default();
    let joined = rfc_3339(UNIX_EPOCH + Duration::from_secs(joined_s));
    format!("{host}{address}, and has joined at {joined}Z")
}
