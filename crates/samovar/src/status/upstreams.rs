//! Formats the part of a status about upstream caches.

use std::fmt::Write as _;

use samovar_metrics::UpstreamStatus;

use super::plain;
use crate::size::{counted, human};

/// Formats the status of the upstreams.
pub(super) fn upstreams(out: &mut String, upstreams: &[UpstreamStatus]) -> std::fmt::Result {
    for one in upstreams {
        write!(
            out,
            "\nupstream {} at {}: ",
            plain(&one.name),
            plain(&one.url)
        )?;
        match &one.down {
            Some(reason) => writeln!(out, "NOT ASKED, {}", plain(reason))?,
            None => writeln!(out, "asked")?,
        }
        writeln!(
            out,
            "  {} found, {} absent, {} of {} received, {}",
            counted(one.found_count, "narinfo"),
            one.absent_count,
            counted(one.nar_count, "NAR"),
            human(one.nar_len),
            counted(one.fault_count, "fault")
        )?;
        if one.kept_count > 0 {
            let nars = counted(one.kept_count, "NAR");
            writeln!(
                out,
                "  {nars} of {} sent from the storage",
                human(one.kept_len)
            )?;
        }
        if !one.last_fault.is_empty() {
            writeln!(out, "  last fault: {}", plain(&one.last_fault))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_has_its_state_and_its_counts() {
        let mut out = String::new();
        let one = UpstreamStatus {
            name: "team".to_owned(),
            url: "https://cache.example.org".to_owned(),
            down: Some("connection refused".to_owned()),
            found_count: 2,
            absent_count: 3,
            fault_count: 1,
            last_fault: "connection refused".to_owned(),
            nar_count: 1,
            nar_len: 2 << 20,
            kept_count: 3,
            kept_len: 5 << 20,
            ..UpstreamStatus::default()
        };
        upstreams(&mut out, &[one]).unwrap();
        assert_eq!(
            out,
            "\nupstream team at https://cache.example.org: NOT ASKED, connection refused\n  2 \
             narinfos found, 3 absent, 1 NAR of 2.0 MiB received, 1 fault\n  3 NARs of 5.0 MiB \
             sent from the storage\n  last fault: connection refused\n"
        );
    }
}
