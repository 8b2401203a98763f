//! The part of the status page about the storage for uploads.

use maud::{Markup, html};
use samovar_metrics::{
    BucketStatus, CollectorStatus, DatabaseStatus, NodeStatus, OidcStatus, OtherNode,
    StorageStatus, StoredCacheStatus,
};

use super::status::seconds;
use super::text::{Count, Date, Size};

/// Renders the section of the status page about the storage for uploads.
pub(super) fn section(storage: &StorageStatus) -> Markup {
    html! {
        section aria-labelledby="uploads" {
            h2 id="uploads" { "Uploads" }
            dl.table-of-facts {
                div { dt { "Storage" } dd { code { (storage.directory) } (disk(storage)) } }
                @if let Some(bucket) = &storage.bucket { (of_bucket(bucket)) }
                @if let Some(database) = &storage.database { (of_database(database)) }
                @if let Some(node) = &storage.node { (of_node(node)) }
                (uploads(storage))
                (totals(storage))
                @if !storage.oidc.is_empty() { (id_tokens(&storage.oidc)) }
                div { dt { "Collector" } dd { (collector(&storage.collector)) } }
            }
            @if !storage.caches.is_empty() { (caches(&storage.caches)) }
        }
    }
}

fn disk(storage: &StorageStatus) -> Markup {
    html! {
        @if let (Some(free), Some(all)) = (storage.disk_free_len, storage.disk_len) {
            ", " (Size(free).brief()) " of " (Size(all).brief()) " free"
        }
    }
}

fn of_bucket(bucket: &BucketStatus) -> Markup {
    let failed: u64 = bucket.requests.iter().map(|one| one.failed_count).sum();
    let cache = &bucket.cache;
    html! {
        div { dt { "Bucket" } dd {
            code { (bucket.url) } ", " (state(bucket.down.as_deref())) ", "
            (Count(bucket.running_count)) " of " (Count(bucket.running_count_max))
            " requests in progress; since the start "
            (Size(bucket.sent_len).brief()) " sent, " (Size(bucket.received_len).brief())
            " received, " (Count(bucket.retry_count)) " repeated" (failures(failed))
        } }
        div { dt { "Disk cache" } dd {
            (Size(cache.len).brief()) " of " (Size(cache.len_max).brief()) " in "
            (Count(cache.file_count).of("file")) "; since the start "
            (Count(cache.hit_count)) " hits, " (Count(cache.miss_count)) " misses"
        } }
    }
}

fn of_database(database: &DatabaseStatus) -> Markup {
    html! {
        div { dt { "Database" } dd {
            code { (database.url) } ", " (state(database.down.as_deref())) ", "
            (Count(database.connection_count).of("connection")) "; since the start "
            (Count(database.reads.committed_count)) " reads, "
            (Count(database.writes.committed_count)) " writes"
            (failures(database.reads.failed_count + database.writes.failed_count))
        } }
    }
}

fn of_node(node: &NodeStatus) -> Markup {
    html! {
        div { dt { "This node" } dd {
            code { (node.name) } ", "
            @match (node.has_lease, node.lease_age_s) {
                (true, _) => "answers from memory",
                (false, Some(age)) => {
                    strong { "asks the database for each path" } ", its lease was renewed "
                    (seconds(age)) " ago"
                },
                (false, None) => "asks the database for each path until it has a lease",
            }
            @if let Some(count) = node.behind_count.filter(|count| *count > 0) {
                ", " (Count(count).of("commit")) " behind"
            }
            "; since the start " (Count(node.publish_wait_count).of("commit"))
            " waited for all nodes"
            @if node.publish_wait_count > 0 {
                ", " (seconds(mean(node.publish_wait_s, node.publish_wait_count)))
                " in the mean"
            }
        } }
        div { dt { "Other nodes" } dd {
            @if node.others.is_empty() { "none" }
            @else { ul { @for other in &node.others { li { (of_other(other)) } } } }
        } }
    }
}

fn of_other(other: &OtherNode) -> Markup {
    html! {
        code { (other.name) }
        @if let Some(machine) = &other.machine { " on " (machine) }
        @if let Some(address) = &other.address { ", " code { (address) } }
        ", " (other.version) ", "
        @match other.has_lease {
            true => "answers from memory",
            false => { strong { "has ended, hangs, or does not reach the database" } },
        }
        @if other.behind_count > 0 { ", " (Count(other.behind_count).of("commit")) " behind" }
        ", joined " (Date(i64::try_from(other.joined_ms / 1000).unwrap_or_default()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn mean(total_s: f64, count: u64) -> f64 {
    total_s / count.max(1) as f64
}

fn id_tokens(issuers: &[OidcStatus]) -> Markup {
    html! {
        div { dt { "ID tokens" } dd { ul {
            @for one in issuers { li {
                (one.issuer) ": " (Count(one.granted_count)) " exchanged, "
                (Count(one.refused_count)) " refused"
                @if one.unavailable_count > 0 {
                    ", " strong { (Count(one.unavailable_count)) " not verified" }
                }
            } }
        } } }
    }
}

/// Says whether a bucket or a database answers. `down`: the reason if it does not.
fn state(down: Option<&str>) -> Markup {
    html! {
        @match down {
            Some(reason) => { strong { "not available: " (reason) } },
            None => "available",
        }
    }
}

fn failures(count: u64) -> Markup {
    html! { @if count > 0 { ", " strong { (Count(count)) " failed" } } }
}

fn uploads(storage: &StorageStatus) -> Markup {
    let uploads = &storage.uploads;
    let counted = uploads.counts.iter().filter(|one| one.count > 0);
    let refused = uploads.refused.iter().filter(|one| one.count > 0);
    html! {
        div { dt { "Now" } dd {
            (Count(uploads.running_count)) " of " (Count(uploads.running_count_max))
            " NARs in progress, " (Count(uploads.waiting_count)) " waiting, "
            (Count(uploads.queued_path_count).of("path")) " waiting for a commit"
        } }
        div { dt { "Since the start" } dd {
            (Size(uploads.received_len)) " received"
            @for one in counted {
                ", " (Count(one.count).of(one.noun())) " " (one.result)
            }
        } }
        @if uploads.refused.iter().any(|one| one.count > 0) {
            div { dt { "Reasons of refusals" } dd {
                @for (index, one) in refused.enumerate() {
                    @if index > 0 { ", " }
                    (one.name.replace('_', " ")) " " (Count(one.count))
                }
            } }
        }
    }
}

fn totals(storage: &StorageStatus) -> Markup {
    html! {
        @if let Some(totals) = &storage.totals {
            div { dt { "NARs" } dd {
                (Count(totals.nar_count)) ", " (Size(totals.nar_len).brief()) " in files of "
                (Size(totals.file_len).brief()) ", " (Count(totals.loose_count))
                " without a path (" (Size(totals.loose_len).brief()) ")"
                @if totals.lost_count > 0 {
                    ", " strong { (Count(totals.lost_count)) " lost" }
                }
            } }
            div { dt { "Build logs" } dd {
                (Count(totals.log_count)) ", " (Size(totals.extra_len).brief())
                " with narinfos and realisations"
            } }
            div { dt { "Pins" } dd { (Count(totals.pin_count)) } }
        }
    }
}

fn collector(collector: &CollectorStatus) -> Markup {
    html! {
        @match collector.last_success_ms {
            Some(at) => {
                "last run " (Date(i64::try_from(at / 1000).unwrap_or_default()))
            },
            None => "no complete run yet",
        }
        @if let Some(time) = collector.last_duration_s { ", took " (seconds(time)) }
        @if collector.failure_count > 0 {
            ", " strong { (Count(collector.failure_count)) " failed" }
        }
        "; since the start " (Count(collector.deleted_path_count).of("path")) " deleted, "
        (Size(collector.freed_len).brief()) " freed"
    }
}

fn caches(caches: &[StoredCacheStatus]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Cache" }
                th.number scope="col" { "paths" }
                th.number scope="col" { "size" }
                th.number scope="col" { "quota" }
            } }
            tbody { @for cache in caches { tr {
                th scope="row" { (cache.name) }
                td.number { (Count(cache.path_count)) }
                td.number { (Size(cache.len).brief()) }
                td.number {
                    @match cache.quota_len {
                        Some(quota) => { (Size(quota).brief()) },
                        None => "–",
                    }
                }
            } } }
        }
    }
}
