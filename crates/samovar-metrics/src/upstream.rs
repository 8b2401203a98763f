//! The status of upstream caches, and its Prometheus metrics.

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// The metric families, one line each: name, type and help.
macro_rules! families {
    () => {
        "\
samovar_upstream_up gauge Whether the upstream is asked: 1, or 0 after faults in a row.
samovar_upstream_narinfo_requests_total counter Requests for narinfos to the upstream.
samovar_upstream_narinfos_total counter Answers of the upstream to requests for narinfos by result.
samovar_upstream_faults_total counter Requests to the upstream without a usable answer.
samovar_upstream_nars_total counter NARs received completely from the upstream and verified.
samovar_upstream_nar_bytes_total counter Bytes of NARs received from the upstream, compressed.
samovar_upstream_kept_nars_total counter NARs of the upstream sent from the storage.
samovar_upstream_kept_nar_bytes_total counter Bytes of NARs of the upstream sent from the storage.
"
    };
}
pub(crate) use families;

/// The status of one upstream cache. The counters begin at the start of the server, or when a
/// reload has changed the upstreams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// The name in the configuration.
    pub name: String,
    /// The URL, without a login.
    pub url: String,
    /// Why the upstream is not asked at present, as a part of a sentence; `None` if it is asked.
    pub down: Option<String>,
    /// Requests for narinfos.
    pub narinfo_count: u64,
    /// Narinfos that were received and may be served.
    pub found_count: u64,
    /// Answers that the upstream lacks the path.
    pub absent_count: u64,
    /// Requests without a usable answer.
    pub fault_count: u64,
    /// The last of them, as a part of a sentence; empty if there was none.
    pub last_fault: String,
    /// NARs that were received completely and are right.
    pub nar_count: u64,
    /// Bytes of NARs, as compressed by the upstream.
    pub nar_len: u64,
    /// NARs that were sent from the storage, where they are kept.
    pub kept_count: u64,
    /// Bytes of these NARs.
    pub kept_len: u64,
}

/// Writes the metrics of the upstreams.
pub(crate) fn expose(text: &mut Text, upstreams: &[UpstreamStatus]) {
    let mut put = |name, value: fn(&UpstreamStatus) -> u64| {
        let mut family = text.family(name);
        for upstream in upstreams {
            family.put(&[("upstream", &upstream.name)], value(upstream));
        }
    };
    put("samovar_upstream_up", |one| u64::from(one.down.is_none()));
    put("samovar_upstream_narinfo_requests_total", |one| {
        one.narinfo_count
    });
    put("samovar_upstream_faults_total", |one| one.fault_count);
    put("samovar_upstream_nars_total", |one| one.nar_count);
    put("samovar_upstream_nar_bytes_total", |one| one.nar_len);
    put("samovar_upstream_kept_nars_total", |one| one.kept_count);
    put("samovar_upstream_kept_nar_bytes_total", |one| one.kept_len);
    let mut family = text.family("samovar_upstream_narinfos_total");
    for one in upstreams {
        let results = [("found", one.found_count), ("absent", one.absent_count)];
        for (result, count) in results {
            family.put(&[("upstream", &one.name), ("result", result)], count);
        }
    }
}
