//! Prints the result of `samovar push` as text or JSON.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::Summary;
use super::pin::PinReport;
use crate::size::{counted, human};

/// The result of a push, with its duration and number of requests.
#[derive(Debug)]
pub(super) struct Report {
    url: String,
    is_dry: bool,
    pub(super) summary: Summary,
    /// Number of paths that the options excluded.
    pub(super) excluded_count: usize,
    /// Whether the cache does not support the push protocol, so that files were uploaded one by
    /// one.
    pub(super) is_stock: bool,
    pub(super) request_count: u64,
    /// The outcome of `--pin`. `None`: the option is not given.
    pub(super) pin: Option<PinReport>,
    pub(super) time: Duration,
}

impl Report {
    pub(super) fn new(url: &str, is_dry: bool) -> Self {
        Self {
            url: url.to_owned(),
            is_dry,
            summary: Summary::default(),
            excluded_count: 0,
            is_stock: false,
            request_count: 0,
            pin: None,
            time: Duration::ZERO,
        }
    }

    /// Adds the result of a later push to the same cache.
    pub(super) fn add(&mut self, other: Self) {
        self.summary.add(other.summary);
        self.excluded_count += other.excluded_count;
        self.is_stock |= other.is_stock;
        // The client counts the requests of all its pushes, so the later count includes the earlier
        // one.
        self.request_count = self.request_count.max(other.request_count);
        self.time += other.time;
    }

    /// # Errors
    ///
    /// `out` cannot be written.
    pub(super) fn print(&self, out: &mut dyn Write, is_json: bool) -> io::Result<()> {
        if is_json {
            return writeln!(out, "{}", self.json());
        }
        if self.is_dry {
            for path in &self.summary.pushed {
                writeln!(out, "{path}")?;
            }
        }
        for (path, reason) in &self.summary.failed {
            writeln!(out, "failed {path}: {reason}")?;
        }
        if let Some(pin) = &self.pin {
            writeln!(out, "{}", pin.line())?;
        }
        writeln!(out, "{}", self.line())
    }

    fn line(&self) -> String {
        let summary = &self.summary;
        let (count, nar_len) = (summary.pushed.len(), human(summary.nar_len));
        let paths = counted(count, "path");
        let mut line = match self.is_dry {
            true => format!("{paths} to push, {nar_len} of NARs"),
            false => {
                let sent_len = human(summary.sent_len);
                format!("pushed {paths}, {nar_len} of NARs, {sent_len} sent")
            }
        };
        for (count, what) in [
            (summary.present.len(), "already in the cache"),
            (self.excluded_count, "excluded"),
            (summary.failed.len(), "failed"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        let seconds = self.time.as_secs_f64();
        let how = match self.is_stock {
            true => " of nix copy",
            false => "",
        };
        line.push_str(&format!(
            "; {}{how} in {seconds:.1} s",
            counted(self.request_count, "request")
        ));
        line
    }

    fn json(&self) -> Value {
        let failed = self.summary.failed.iter();
        let failed = failed.map(|(path, reason)| json!({ "path": path, "reason": reason }));
        json!({
            "cache": self.url,
            "dryRun": self.is_dry,
            "pushed": self.summary.pushed,
            "present": self.summary.present,
            "failed": failed.collect::<Vec<_>>(),
            "excluded": self.excluded_count,
            "pin": self.pin.as_ref().map(PinReport::json),
            "narSize": self.summary.nar_len,
            "sentSize": self.summary.sent_len,
            "pushProtocol": !self.is_stock,
            "requests": self.request_count,
            "seconds": self.time.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines() {
        let mut report = Report::new("http://a", false);
        report.summary.pushed = vec!["/nix/store/a".to_owned()];
        report.summary.nar_len = 2048;
        report.summary.sent_len = 100;
        report.request_count = 4;
        assert_eq!(
            report.line(),
            "pushed 1 path, 2.0 KiB of NARs, 100 B sent; 4 requests in 0.0 s"
        );
        report.summary.failed = vec![("/nix/store/b".to_owned(), "why".to_owned())];
        assert!(report.line().contains(" sent, 1 failed; "));
        let mut out = Vec::new();
        report.print(&mut out, false).unwrap();
        assert!(out.starts_with(b"failed /nix/store/b: why\npushed 1 path"));
        report.is_dry = true;
        assert!(
            report
                .line()
                .starts_with("1 path to push, 2.0 KiB of NARs, 1 failed")
        );
        assert_eq!(report.json()["failed"][0]["reason"], "why");
    }
}
