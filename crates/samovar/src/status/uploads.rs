//! Formats the part of a status about uploads: the storage, the collector, and a hook's spool.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use samovar_client::push::spool::{self, FAILED};
use samovar_metrics::{BucketStatus, DatabaseStatus, NodeStatus, StorageStatus, StoredCacheStatus};
use serde_json::{Value, json};

use super::{plain, time};
use crate::size::{counted, human};

/// Formats the status of a storage. `now_ms`: time of the snapshot, in milliseconds since 1970.
pub(super) fn storage(out: &mut String, storage: &StorageStatus, now_ms: u64) -> std::fmt::Result {
    write!(out, "\nuploads into {}", plain(&storage.directory))?;
    if let (Some(free), Some(all)) = (storage.disk_free_len, storage.disk_len) {
        write!(out, ", {} of {} free", human(free), human(all))?;
    }
    writeln!(out)?;
    remotes(out, storage)?;
    let uploads = &storage.uploads;
    writeln!(
        out,
        "  {} in progress, {} waiting, {} waiting for a commit, {} received",
        uploads.running_count,
        uploads.waiting_count,
        counted(uploads.queued_path_count, "path"),
        human(uploads.received_len)
    )?;
    let counts = uploads.counts.iter().filter(|one| one.count > 0);
    let counts = counts.map(|one| format!("{} {}", counted(one.count, one.noun()), one.result));
    list(out, "since the start", counts)?;
    let refused = uploads.refused.iter().filter(|one| one.count > 0);
    let refused = refused.map(|one| format!("{} {}", one.name.replace('_', " "), one.count));
    list(out, "reasons of refusals", refused)?;
    for one in &storage.caches {
        cache(out, one)?;
    }
    if let Some(totals) = &storage.totals {
        write!(
            out,
            "  {} in {}, {} of them without a path ({}), {} ({} with narinfos and realisations), \
             {}",
            counted(totals.nar_count, "NAR"),
            human(totals.file_len),
            totals.loose_count,
            human(totals.loose_len),
            counted(totals.log_count, "build log"),
            human(totals.extra_len),
            counted(totals.pin_count, "pin")
        )?;
        match totals.lost_count {
            0 => writeln!(out)?,
            count => writeln!(out, ", {count} LOST")?,
        }
    }
    let collector = &storage.collector;
    let last = match collector.last_success_ms {
        Some(at) => {
            let ago = std::time::Duration::from_millis(now_ms.saturating_sub(at));
            format!("last run {} ago", time(ago.as_secs_f64()))
        }
        None => "no complete run yet".to_owned(),
    };
    write!(
        out,
        "  collector: {last}, {} condemned, {} deleted, {} freed",
        counted(collector.condemned_path_count, "path"),
        collector.deleted_path_count,
        human(collector.freed_len)
    )?;
    match collector.failure_count {
        0 => writeln!(out),
        count => writeln!(out, ", {count} FAILED"),
    }
}

/// Formats what the storage has on other machines.
fn remotes(out: &mut String, storage: &StorageStatus) -> std::fmt::Result {
    if let Some(of) = &storage.bucket {
        bucket(out, of)?;
    }
    if let Some(of) = &storage.database {
        database(out, of)?;
    }
    match &storage.node {
        Some(of) => node(out, of),
        None => Ok(()),
    }
}

fn bucket(out: &mut String, bucket: &BucketStatus) -> std::fmt::Result {
    let failed: u64 = bucket.requests.iter().map(|one| one.failed_count).sum();
    let cache = &bucket.cache;
    writeln!(
        out,
        "  bucket {}: {}, {} of {} requests in progress, {} sent, {} received, {} repeated{}",
        plain(&bucket.url),
        state(bucket.down.as_deref()),
        bucket.running_count,
        bucket.running_count_max,
        human(bucket.sent_len),
        human(bucket.received_len),
        bucket.retry_count,
        failures(failed)
    )?;
    writeln!(
        out,
        "  disk cache: {} of {} in {}, {} hits, {} misses",
        human(cache.len),
        human(cache.len_max),
        counted(cache.file_count, "file"),
        cache.hit_count,
        cache.miss_count
    )
}

fn database(out: &mut String, database: &DatabaseStatus) -> std::fmt::Result {
    writeln!(
        out,
        "  database {}: {}, {}, {} reads, {} writes{}",
        plain(&database.url),
        state(database.down.as_deref()),
        counted(database.connection_count, "connection"),
        database.reads.committed_count,
        database.writes.committed_count,
        failures(database.reads.failed_count + database.writes.failed_count)
    )
}

fn node(out: &mut String, node: &NodeStatus) -> std::fmt::Result {
    let own = match node.has_lease {
        true => "answers from memory",
        false => "HAS NO LEASE, asks the database for each path",
    };
    writeln!(out, "  this node {}: {own}", plain(&node.name))?;
    for other in &node.others {
        let state = match other.has_lease {
            true => "answers from memory",
            false => "HAS NO LEASE: it has ended, hangs, or does not reach the database",
        };
        let machine = other.machine.as_deref().unwrap_or("an unknown machine");
        writeln!(
            out,
            "  node {} on {}: {state}, {} behind",
            plain(&other.name),
            plain(machine),
            counted(other.behind_count, "commit")
        )?;
    }
    Ok(())
}

/// Says whether a bucket or a database answers. `down`: the reason if it does not.
fn state(down: Option<&str>) -> String {
    match down {
        Some(reason) => format!("NOT AVAILABLE: {}", plain(reason)),
        None => "available".to_owned(),
    }
}

fn failures(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(", {count} FAILED"),
    }
}

fn list(out: &mut String, title: &str, parts: impl Iterator<Item = String>) -> std::fmt::Result {
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => Ok(()),
        false => writeln!(out, "  {title}: {}", plain(&parts.join(", "))),
    }
}

fn cache(out: &mut String, cache: &StoredCacheStatus) -> std::fmt::Result {
    write!(
        out,
        "  cache {}: {}, {}",
        plain(&cache.name),
        counted(cache.path_count, "path"),
        human(cache.len)
    )?;
    match cache.quota_len {
        Some(quota) => {
            let percent = cache.len.saturating_mul(100) / quota.max(1);
            writeln!(out, " of its quota of {} ({percent} %)", human(quota))
        }
        None => writeln!(out),
    }
}

/// The backlog of a spool directory.
#[derive(Debug)]
pub(super) struct Spool {
    directory: String,
    /// Number of builds that wait to be pushed.
    waiting_count: usize,
    /// Age in seconds of the oldest waiting build. `None` if no build waits.
    oldest_s: Option<f64>,
    /// Number of builds with a path that the cache has refused.
    failed_count: usize,
}

impl Spool {
    /// Reads the names of the files in the spool directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub(super) fn read(dir: &Path) -> anyhow::Result<Self> {
        let waiting = spool::files(dir)?;
        let failed = dir.join(FAILED);
        let failed_count = match failed.exists() {
            true => spool::files(&failed)?.len(),
            false => 0,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.unwrap_or_default().as_secs_f64();
        let oldest = waiting.first().and_then(|file| stored_at(file));
        Ok(Self {
            directory: dir.display().to_string(),
            waiting_count: waiting.len(),
            oldest_s: oldest.map(|at| (now_s - at).max(0.0)),
            failed_count,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "spool {}: {} waiting",
            plain(&self.directory),
            counted(self.waiting_count, "build")
        );
        if let Some(age) = self.oldest_s {
            text.push_str(&format!(", the oldest for {}", time(age)));
        }
        if self.failed_count > 0 {
            text.push_str(&format!(
                ", {} REFUSED (in {}/{FAILED})",
                self.failed_count,
                plain(&self.directory)
            ));
        }
        text + "\n"
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "directory": self.directory,
            "waiting_count": self.waiting_count,
            "oldest_s": self.oldest_s,
            "failed_count": self.failed_count,
        })
    }
}

/// Returns the time in the name of a spool file, in seconds since 1970. Returns `None` for other
/// names.
#[expect(clippy::cast_precision_loss, reason = "precise to the microsecond")]
fn stored_at(file: &Path) -> Option<f64> {
    let name = file.file_name()?.to_str()?;
    let ns: u64 = name.split('-').next()?.parse().ok()?;
    Some(ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_backlog_of_a_spool_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let empty = Spool::read(dir.path()).unwrap();
        assert!(empty.text().ends_with(": 0 builds waiting\n"));
        fs::create_dir(dir.path().join(FAILED)).unwrap();
        for name in [
            "00000000001000000000-1.paths",
            "00000000002000000000-1.paths",
            ".00000000002000000000-2.paths",
            "failed/00000000000000000003-1.paths",
        ] {
            fs::write(dir.path().join(name), "/nix/store/x\n").unwrap();
        }
        let spool = Spool::read(dir.path()).unwrap();
        assert_eq!((spool.waiting_count, spool.failed_count), (2, 1));
        // The oldest file is dated in the first second of 1970.
        assert!(spool.oldest_s.unwrap() > 1.7e9);
        assert!(
            spool.text().contains(", 1 REFUSED (in "),
            "{}",
            spool.text()
        );
        assert!(Spool::read(&dir.path().join("missing")).is_err());
    }
}
