//! Counts of events in the status.

use serde::{Deserialize, Serialize};

/// Number of occurrences of one kind of event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventCount {
    /// Name of the event, as in the error log.
    pub name: String,
    /// Number of occurrences of the event since the start.
    pub count: u64,
}
