//! The part of the status page about upstream caches.

use maud::{Markup, html};
use samovar_metrics::UpstreamStatus;

use super::text::{Count, Size};

/// Renders the section of the status page about upstream caches.
pub(super) fn section(upstreams: &[UpstreamStatus]) -> Markup {
    html! {
        section aria-labelledby="upstreams" {
            h2 id="upstreams" { "Upstream caches" }
            table {
                thead { tr {
                    th scope="col" { "Upstream" }
                    th scope="col" { "state" }
                    th.number scope="col" { "narinfos" }
                    th.number scope="col" { "absent" }
                    th.number scope="col" { "NARs" }
                    th.number scope="col" { "received" }
                    th.number scope="col" { "sent from the storage" }
                    th.number scope="col" { "faults" }
                } }
                tbody { @for one in upstreams { tr {
                    th scope="row" { (one.name) br; code { (one.url) } }
                    td {
                        @match &one.down {
                            Some(reason) => { strong { "not asked: " (reason) } },
                            None => "asked",
                        }
                        @if !one.last_fault.is_empty() && one.down.is_none() {
                            br; "last fault: " (one.last_fault)
                        }
                    }
                    td.number { (Count(one.found_count)) }
                    td.number { (Count(one.absent_count)) }
                    td.number { (Count(one.nar_count)) }
                    td.number { (Size(one.nar_len).brief()) }
                    td.number { (Size(one.kept_len).brief()) }
                    td.number { (Count(one.fault_count)) }
                } } }
            }
        }
    }
}
