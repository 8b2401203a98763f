//! Names of the files in a storage directory.

use samovar_nix::HashPart;

/// Path of the database, relative to the storage directory.
pub const DATABASE: &str = ".samovar/db.sqlite";

/// File whose lock a process holds that uses the storage alone. Its text is the ID of that process.
pub(crate) const LOCK: &str = ".samovar/lock";

/// File with the identifier that the database also has.
pub(crate) const STORE_ID: &str = ".samovar/store-id";

/// Key of an empty file by which the operator confirms that the missing files are lost.
pub(crate) const CONFIRMATION: &str = "nar/lost";

/// File of the local directory of a storage that has its objects in a bucket: where they are.
pub(crate) const ELSEWHERE: &str = ".samovar/elsewhere";

/// Directory for files that are still being written.
pub(crate) const TMP: &str = ".samovar/tmp";

/// Prefix of the keys of parts of NAR files. Each push has a directory for its parts.
pub(crate) const PART_PREFIX: &str = ".samovar/tmp/push-";

/// Prefix of the keys of logs of the mirrored cache.
pub(crate) const LOGS: &str = "log/";

/// Name of the file that describes the mirrored cache to clients.
pub(crate) const CACHE_INFO: &str = "nix-cache-info";

/// Returns the prefix of the keys of logs of the cache with this row ID, if it is not mirrored.
pub(crate) fn log_prefix(cache: i64) -> String {
    format!(".samovar/log/{cache}/")
}

/// Returns the key of the narinfo of a path of the mirrored cache.
pub(crate) fn narinfo_key(hash_part: HashPart) -> String {
    format!("{hash_part}.narinfo")
}

/// What the names of caches with paths of upstreams begin with. The names of other caches have no
/// colon. Statements of [`backup`](crate::metadata::backup) have it, too.
const UPSTREAM_PREFIX: &str = "upstream:";

/// Returns the name of the storage's cache with the paths of an upstream.
#[must_use]
pub fn cache_name(upstream: &str) -> String {
    format!("{UPSTREAM_PREFIX}{upstream}")
}

/// Whether a cache of the storage has paths of an upstream.
#[must_use]
pub fn is_of_upstream(cache: &str) -> bool {
    cache.starts_with(UPSTREAM_PREFIX)
}
