//! Merges that were begun, but have not ended.

use super::is_directory;
use crate::entries::{Entries, Entry, Kind, TreeError};
use crate::walk::Walk;

/// Returns the base for a merge into a tree in which a merge of `begun` was cut off. The base has
/// the entry of `begun` where ours is like it, otherwise the entry of `base`. So what the earlier
/// merge has changed does not count as a change of ours.
///
/// # Errors
///
/// The entries do not form a tree, which only damaged trees can cause.
pub fn advanced(base: &Entries, ours: &Entries, begun: &Entries) -> Result<Entries, TreeError> {
    let walk = Walk::new([base, ours, begun]);
    let entries = walk.filter_map(|[in_base, in_ours, in_begun]| {
        let old = in_base.and_then(|index| base.get(index));
        let our = in_ours.and_then(|index| ours.get(index));
        let new = in_begun.and_then(|index| begun.get(index));
        let is_replaced = old.is_some() && is_directory(old) != is_directory(new) && new.is_some();
        match likeness(our, old) >= likeness(our, new) {
            // The earlier merge has removed our entry, and not yet created the other one.
            true if our.is_none() && is_replaced => None,
            true => old,
            false => new,
        }
    });
    Entries::of(entries)
}

/// Returns how much an entry of ours is like another one; 0 if it has other data.
fn likeness(our: Option<&Entry>, other: Option<&Entry>) -> u8 {
    match (our, other) {
        (None, None) => 1,
        (Some(our), Some(other)) if our.has_same_data(other) => {
            let is_file = matches!(our.kind, Kind::File { .. });
            let has_same_time = is_file && our.mtime == other.mtime;
            1 + 2 * u8::from(our.mode == other.mode) + u8::from(has_same_time)
        }
        _ => 0,
    }
}
