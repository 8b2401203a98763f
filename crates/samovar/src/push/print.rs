//! Prints the result of `samovar push` as text or JSON.

use std::io::{self, Write};

use samovar_client::push::{PinReport, Report};
use serde_json::{Value, json};

use crate::outcome::Outcome;
use crate::size::{counted, human};

/// Prints the result of a push.
///
/// # Errors
///
/// `out` cannot be written.
pub(super) fn print(report: &Report, out: &mut dyn Write, is_json: bool) -> io::Result<()> {
    if is_json {
        return writeln!(out, "{}", json_of(report));
    }
    if report.is_dry {
        for path in &report.summary.pushed {
            writeln!(out, "{path}")?;
        }
    }
    for (path, reason) in &report.summary.failed {
        writeln!(out, "failed {path}: {reason}")?;
    }
    if let Some(pin) = &report.pin {
        writeln!(out, "{}", pin_line(pin))?;
    }
    writeln!(out, "{}", line(report))
}

fn line(report: &Report) -> String {
    let summary = &report.summary;
    let (count, nar_len) = (summary.pushed.len(), human(summary.nar_len));
    let paths = counted(count, "path");
    let mut line = match report.is_dry {
        true => format!("{paths} to push, {nar_len} of NARs"),
        false => {
            let sent_len = human(summary.sent_len);
            format!("pushed {paths}, {nar_len} of NARs, {sent_len} sent")
        }
    };
    let saved = usize::try_from(summary.saved.count).unwrap_or(usize::MAX);
    if saved > 0 {
        let saved_len = human(summary.saved.nar_len);
        line.push_str(&format!(
            ", {saved} at upstreams of the cache ({saved_len})"
        ));
    }
    for (count, what) in [
        (
            summary.present.len().saturating_sub(saved),
            "already in the cache",
        ),
        (report.excluded_count, "excluded"),
        (summary.failed.len(), "failed"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    let seconds = report.time.as_secs_f64();
    let how = match report.is_stock {
        true => " of nix copy",
        false => "",
    };
    line.push_str(&format!(
        "; {}{how} in {seconds:.1} s",
        counted(report.request_count, "request")
    ));
    line
}

fn json_of(report: &Report) -> Value {
    let failed = report.summary.failed.iter();
    let failed = failed.map(|(path, reason)| json!({ "path": path, "reason": reason }));
    json!({
        "cache": report.url,
        "dryRun": report.is_dry,
        "pushed": report.summary.pushed,
        "present": report.summary.present,
        "failed": failed.collect::<Vec<_>>(),
        "excluded": report.excluded_count,
        "pin": report.pin.as_ref().map(pin_json),
        "narSize": report.summary.nar_len,
        "sentSize": report.summary.sent_len,
        "ofUpstreams": report.summary.saved.count,
        "ofUpstreamsSize": report.summary.saved.nar_len,
        "pushProtocol": !report.is_stock,
        "requests": report.request_count,
        "seconds": report.time.as_secs_f64(),
    })
}

/// Returns the outcome of a push: whether all paths are in the cache, and the path is pinned.
pub(super) fn outcome(report: &Report) -> Outcome {
    let is_pinned = report.pin.as_ref().is_none_or(|pin| pin.generation.is_ok());
    match report.summary.failed.is_empty() && is_pinned {
        true => Outcome::Complete,
        false => Outcome::Incomplete,
    }
}

fn pin_line(pin: &PinReport) -> String {
    let PinReport { name, path, .. } = pin;
    match &pin.generation {
        Ok(generation) => format!("pinned {path} as {name}, generation {generation}"),
        Err(reason) => format!("not pinned {path} as {name}: {reason}"),
    }
}

fn pin_json(pin: &PinReport) -> Value {
    let (generation, reason) = match &pin.generation {
        Ok(generation) => (Some(generation), None),
        Err(reason) => (None, Some(reason)),
    };
    json!({
        "name": pin.name.as_str(),
        "path": pin.path,
        "generation": generation,
        "reason": reason,
    })
}

#[cfg(test)]
mod tests {
    use samovar_protocol::push::Saved;

    use super::*;

    #[test]
    fn summary_lines() {
        let mut report = Report {
            url: "http://a".to_owned(),
            ..Report::default()
        };
        report.summary.pushed = vec!["/nix/store/a".to_owned()];
        report.summary.nar_len = 2048;
        report.summary.sent_len = 100;
        report.request_count = 4;
        assert_eq!(
            line(&report),
            "pushed 1 path, 2.0 KiB of NARs, 100 B sent; 4 requests in 0.0 s"
        );
        report.summary.present = vec!["/nix/store/c".to_owned(); 3];
        report.summary.saved = Saved {
            count: 2,
            nar_len: 4096,
        };
        assert_eq!(
            line(&report),
            "pushed 1 path, 2.0 KiB of NARs, 100 B sent, 2 at upstreams of the cache (4.0 KiB), 1 \
             already in the cache; 4 requests in 0.0 s"
        );
        report.summary.present.clear();
        report.summary.saved = Saved::default();
        report.summary.failed = vec![("/nix/store/b".to_owned(), "why".to_owned())];
        assert!(line(&report).contains(" sent, 1 failed; "));
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        assert!(out.starts_with(b"failed /nix/store/b: why\npushed 1 path"));
        report.is_dry = true;
        assert!(line(&report).starts_with("1 path to push, 2.0 KiB of NARs, 1 failed"));
        assert_eq!(json_of(&report)["failed"][0]["reason"], "why");
    }
}
