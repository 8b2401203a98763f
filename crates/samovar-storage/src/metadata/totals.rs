//! Totals of a storage for metrics.

/// Numbers and sizes of all NARs, paths and pins in the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Totals of each cache, sorted by name.
    pub caches: Vec<CacheTotals>,
    /// Number of NARs, including lost ones.
    pub nar_count: u64,
    /// Total length of the NARs, in bytes.
    pub nar_bytes: u64,
    /// Total length of the files of NARs, in bytes.
    pub file_bytes: u64,
    /// Number of NARs that no path uses.
    pub loose_count: u64,
    /// Total length of the files of NARs that no path uses, in bytes.
    pub loose_bytes: u64,
    /// Number of NARs whose file is missing or damaged.
    pub lost_count: u64,
    /// Number of build logs.
    pub log_count: u64,
    /// Total length of build logs, realisations and narinfos, in bytes.
    pub extra_bytes: u64,
    /// Number of condemned paths, which will be deleted unless they are used.
    pub condemned_count: u64,
    /// Number of pins. Each generation of a pin counts.
    pub pin_count: u64,
    /// Time at which the last complete run of a collector ended, in any process, in seconds since
    /// 1970. `None`: there was none.
    pub collected_at: Option<i64>,
}

/// Totals of one cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheTotals {
    /// Name of the cache.
    pub name: String,
    /// Number of paths in the cache.
    pub path_count: u64,
    /// Total length of what the cache stores, in bytes: see
    /// [`Metadata::used_bytes`](super::Metadata::used_bytes).
    pub used_bytes: u64,
}
