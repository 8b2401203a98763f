//! Types for recorded uses and the collector.

use std::collections::HashSet;

use super::CacheId;

/// Time that must have passed since the last recorded use of a path until another use is recorded,
/// in seconds.
pub const USE_INTERVAL: i64 = 600;

/// Paths and NARs whose use is not recorded in the database yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Row numbers of the used paths.
    pub paths: HashSet<i64>,
    /// Cache and row number of the used NARs. All paths of the cache with this NAR count as used.
    pub nars: HashSet<(CacheId, i64)>,
}

/// All paths of a storage with their references.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Names of the caches. [`GraphPath::cache`] is an index into them.
    pub caches: Vec<String>,
    /// The paths, in ascending order of their row numbers.
    pub paths: Vec<GraphPath>,
    /// The references of path `i` are `references[starts[i]..starts[i + 1]]`.
    pub starts: Vec<u32>,
    /// Indices into `paths` of the references of all paths, path by path.
    pub references: Vec<u32>,
    /// Indices into `paths` of the paths that have a valid pin.
    pub pinned: Vec<u32>,
}

/// A path of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphPath {
    /// Row number of the path.
    pub id: i64,
    /// Index into [`Graph::caches`].
    pub cache: u32,
    /// Row number of the path's NAR.
    pub nar_id: i64,
    /// Length of the NAR's file, in bytes.
    pub file_size: u64,
    /// Time of the last recorded use, in seconds since 1970.
    pub used_at: i64,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
    /// Time after its last use for which the path is kept, in seconds. `None`: it is kept forever.
    pub retention: Option<i64>,
    /// Whether the path is condemned.
    pub is_condemned: bool,
}

/// Returns [`GraphPath::retention`] from the name of a cache and the name of a path in it.
pub type Times<'a> = dyn Fn(&str, &str) -> Option<i64> + 'a;

impl Graph {
    /// Returns the indices of a path's references.
    pub(crate) fn references(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let range = self.starts[index] as usize..self.starts[index + 1] as usize;
        self.references[range].iter().map(|index| *index as usize)
    }
}
