//! Prints the numbers of a tree, the histogram and the predictions.

use std::io::{self, Write};
use std::path::Path;

use samovar_text::human;
use samovar_workspace::profile::{Facts, Walked};
use serde_json::{Value, json};

use super::predict::{Assumptions, Costs, Prediction};
use super::probe::Probe;
use super::server::{REQUEST_COUNT, RoundTrip};
use super::words::{counted, duration, label, percent, short, shown};
use crate::size::grouped;

/// Number of terminal columns of the longest bar.
const BAR_COLUMNS: u64 = 24;

/// Everything that is printed.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) root: &'a Path,
    /// Type of the file system of the root.
    pub(super) file_system: String,
    pub(super) walked: &'a Walked,
    pub(super) assumed: Assumptions,
    pub(super) predictions: Vec<Prediction>,
    /// The measurement of `--server`.
    pub(super) server: Option<RoundTrip>,
    /// The measurement of `--probe`, with its directory.
    pub(super) probe: Option<(&'a Path, Probe)>,
}

impl Report<'_> {
    /// # Errors
    ///
    /// `out` cannot be written.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let facts = &self.walked.facts;
        self.print_totals(facts, out)?;
        writeln!(out)?;
        print_histogram(facts, out)?;
        print_top(facts, out)?;
        if let Some((dir, probe)) = &self.probe {
            print_probe(dir, probe, out)?;
        }
        if let Some(RoundTrip { url, seconds }) = &self.server {
            let rtt = duration(*seconds);
            writeln!(
                out,
                "\nRound trip to {url}: {rtt}, the minimum of {REQUEST_COUNT} requests"
            )?;
        }
        self.print_predictions(out)?;
        self.print_problems(out)
    }

    fn print_totals(&self, facts: &Facts, out: &mut dyn Write) -> io::Result<()> {
        let sizes = &facts.sizes;
        let root = shown(self.root.as_os_str().as_encoded_bytes());
        writeln!(out, "{root} ({})", self.file_system)?;
        let mut line = format!(
            "{}, {}",
            counted(sizes.files(), "file", "files"),
            counted(facts.directories, "directory", "directories")
        );
        for (count, one, many) in [
            (facts.symlinks, "symbolic link", "symbolic links"),
            (facts.executables, "executable", "executables"),
            (sizes.empty(), "empty file", "empty files"),
            (facts.hard_links, "further hard link", "further hard links"),
            (
                facts.specials,
                "socket, FIFO or device",
                "sockets, FIFOs and devices",
            ),
        ] {
            if count > 0 {
                line.push_str(&format!(", {}", counted(count, one, many)));
            }
        }
        writeln!(out, "{line}")?;
        writeln!(
            out,
            "contents {}: median file {} bytes, mean {}; disk space {}; as a NAR {}",
            human(sizes.bytes()),
            grouped(sizes.median()),
            grouped(sizes.mean()),
            human(facts.allocated),
            human(facts.nar_len())
        )?;
        let (entries, path) = &facts.largest;
        let entries = counted(*entries, "entry", "entries");
        writeln!(out, "largest directory: {}, {entries}", below_root(path))?;
        if let Some(contents) = self.walked.contents {
            writeln!(
                out,
                "duplicates: {} with {}, {:.1} % of the bytes; zstd level 1 compresses to {}, \
                 {:.0} %",
                counted(contents.duplicates, "file", "files"),
                human(contents.duplicate_bytes),
                percent(contents.duplicate_bytes, sizes.bytes()),
                human(contents.compressed_len),
                percent(contents.compressed_len, sizes.bytes())
            )?;
        }
        Ok(())
    }

    fn print_predictions(&self, out: &mut dyn Write) -> io::Result<()> {
        let Assumptions {
            rtt,
            mbit,
            flush,
            install,
        } = self.assumed;
        writeln!(
            out,
            "\nPredictions for a round trip of {}, {} Mbit/s, {} per disk flush, {} per installed \
             file",
            duration(rtt),
            short(mbit),
            duration(flush),
            duration(install)
        )?;
        for prediction in &self.predictions {
            let time = duration(prediction.seconds);
            let (title, formula) = (prediction.title, &prediction.formula);
            writeln!(out, "  {title:22} {time:>8}  {formula}")?;
        }
        Ok(())
    }

    fn print_problems(&self, out: &mut dyn Write) -> io::Result<()> {
        let Walked {
            facts,
            unreadable,
            vanished,
            problems,
            ..
        } = self.walked;
        if *unreadable + *vanished + facts.mounts > 0 {
            writeln!(out)?;
        }
        if facts.mounts > 0 {
            let mounts = counted(facts.mounts, "mount point was", "mount points were");
            writeln!(out, "{mounts} not entered; --cross-mounts enters them")?;
        }
        if *vanished > 0 {
            let entries = counted(*vanished, "entry was", "entries were");
            writeln!(out, "{entries} deleted while the tree was read")?;
        }
        if *unreadable > 0 {
            let entries = counted(*unreadable, "entry", "entries");
            writeln!(
                out,
                "{entries} could not be read, so all numbers are too small:"
            )?;
        }
        for (path, reason) in problems {
            writeln!(out, "  {}: {reason}", below_root(path))?;
        }
        Ok(())
    }

    /// Returns the report as a JSON document. Bytes of names that are not UTF-8 are replaced.
    pub(super) fn json(&self) -> Value {
        let facts = &self.walked.facts;
        let sizes = &facts.sizes;
        let problems = self.walked.problems.iter();
        let problems =
            problems.map(|(path, reason)| json!({ "path": text(path), "reason": reason }));
        json!({
            "directory": self.root.to_string_lossy(),
            "fileSystem": self.file_system,
            "files": sizes.files(),
            "directories": facts.directories,
            "symlinks": facts.symlinks,
            "executables": facts.executables,
            "emptyFiles": sizes.empty(),
            "hardLinks": facts.hard_links,
            "specialFiles": facts.specials,
            "mountPoints": facts.mounts,
            "unreadable": self.walked.unreadable,
            "vanished": self.walked.vanished,
            "problems": problems.collect::<Vec<_>>(),
            "bytes": sizes.bytes(),
            "medianSize": sizes.median(),
            "meanSize": sizes.mean(),
            "allocated": facts.allocated,
            "narSize": facts.nar_len(),
            "frames": sizes.frame_count(),
            "framePayload": sizes.frames().payload(),
            "largestDirectory": {
                "path": text(&facts.largest.1),
                "entries": facts.largest.0,
            },
            "regenerableFiles": facts.regenerable,
            "contents": self.walked.contents.map(|contents| json!({
                "duplicateFiles": contents.duplicates,
                "duplicateBytes": contents.duplicate_bytes,
                "compressedSize": contents.compressed_len,
                "compressionSeconds": contents.compress_seconds,
            })),
            "histogram": histogram_json(facts),
            "topDirectories": top_json(facts),
            "assumed": {
                "rttSeconds": self.assumed.rtt,
                "mbit": self.assumed.mbit,
                "flushSeconds": self.assumed.flush,
                "installSecondsPerFile": self.assumed.install,
            },
            "predictions": self.predictions_json(),
            "server": self.server.as_ref().map(|server| json!({
                "url": server.url,
                "requests": REQUEST_COUNT,
                "rttSeconds": server.seconds,
            })),
            "probe": self.probe.as_ref().map(|(dir, probe)| probe_json(dir, probe)),
        })
    }

    fn predictions_json(&self) -> Value {
        let predictions = self.predictions.iter().map(|it| {
            json!({ "id": it.id, "title": it.title, "seconds": it.seconds, "formula": it.formula })
        });
        predictions.collect()
    }
}

fn histogram_json(facts: &Facts) -> Value {
    let bins = facts.sizes.histogram().bins().iter();
    let frames = facts.sizes.frames();
    let bins = bins.map(|bin| {
        json!({
            "upTo": bin.upper,
            "frames": bin.upper.map(|upper| frames.count(upper)),
            "files": bin.files,
            "bytes": bin.bytes,
        })
    });
    bins.collect()
}

fn top_json(facts: &Facts) -> Value {
    let top = facts.top().into_iter();
    let top = top.map(|it| {
        json!({
            "path": text(&it.path),
            "files": it.files,
            "bytes": it.bytes,
            "regenerable": it.is_regenerable,
        })
    });
    top.collect()
}

fn probe_json(dir: &Path, probe: &Probe) -> Value {
    let costs = costs(&probe.costs).map(|(name, cost)| (name.to_owned(), json!(cost)));
    json!({
        "directory": dir.to_string_lossy(),
        "fileSystem": probe.file_system,
        "files": probe.files,
        "seconds": serde_json::Map::from_iter(costs),
    })
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn print_histogram(facts: &Facts, out: &mut dyn Write) -> io::Result<()> {
    let sizes = &facts.sizes;
    let frames = sizes.frames();
    let bins = sizes.histogram().bins();
    writeln!(
        out,
        "{:>15} {:>6} {:>9} {:>6} {:>6} {:>7}",
        "size in bytes", "frames", "files", "%", "sum %", "bytes %"
    )?;
    let fullest = bins.iter().map(|bin| bin.files).max().unwrap_or_default();
    let (mut lower, mut files_below) = (0, 0);
    for bin in bins {
        files_below += bin.files;
        let frame_count = bin.upper.map(|upper| grouped(frames.count(upper)));
        let line = format!(
            "{:>15} {:>6} {:>9} {:>6.1} {:>6.1} {:>7.1}  {}",
            label(bin, lower),
            frame_count.unwrap_or_default(),
            grouped(bin.files),
            percent(bin.files, sizes.files()),
            percent(files_below, sizes.files()),
            percent(bin.bytes, sizes.bytes()),
            bar(bin.files, fullest)
        );
        writeln!(out, "{}", line.trim_end())?;
        lower = bin.upper.unwrap_or(lower);
    }
    writeln!(
        out,
        "A frame carries {} bytes, and the headers of an RPC take 200 of them. One RPC per file \
         takes\n{}, one stream {}.",
        grouped(frames.payload()),
        counted(sizes.frame_count(), "frame", "frames"),
        grouped(facts.nar_len().div_ceil(frames.payload()))
    )
}

/// Draws a bar of up to [`BAR_COLUMNS`] terminal columns, to an eighth.
fn bar(part: u64, whole: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = part.saturating_mul(8 * BAR_COLUMNS) / whole.max(1);
    let columns = (0..eighths / 8).map(|_| "█");
    let rest = EIGHTHS.iter().zip(0..).find(|(_, it)| *it == eighths % 8);
    columns.chain(rest.map(|(text, _)| *text)).collect()
}

fn print_top(facts: &Facts, out: &mut dyn Write) -> io::Result<()> {
    let top = facts.top();
    if !top.is_empty() {
        writeln!(out, "\nDirectories with the most files")?;
    }
    for ranked in top {
        let mark = match ranked.is_regenerable {
            true => " (can be generated again)",
            false => "",
        };
        writeln!(
            out,
            "  {:>9} {:>6.1} % {:>10}  {}{mark}",
            grouped(ranked.files),
            percent(ranked.files, facts.sizes.files()),
            human(ranked.bytes),
            shown(&ranked.path)
        )?;
    }
    Ok(())
}

fn print_probe(dir: &Path, probe: &Probe, out: &mut dyn Write) -> io::Result<()> {
    let dir = shown(dir.as_os_str().as_encoded_bytes());
    let files = counted(probe.files.into(), "file", "files");
    writeln!(out, "\nMeasured in {dir} ({}), {files}", probe.file_system)?;
    let costs = costs(&probe.costs).map(|(name, cost)| format!("{name} {}", duration(cost)));
    writeln!(out, "  {}", costs.join(", "))
}

/// Returns the costs with their names.
fn costs(costs: &Costs) -> [(&'static str, f64); 8] {
    [
        ("create", costs.create),
        ("read", costs.read),
        ("stat", costs.stat),
        ("rename", costs.rename),
        ("fsync", costs.fsync),
        ("unlink", costs.unlink),
        ("mkdir", costs.mkdir),
        ("rmdir", costs.rmdir),
    ]
}

/// Formats a path below the root.
fn below_root(path: &[u8]) -> String {
    match path.is_empty() {
        true => ".".to_owned(),
        false => shown(path),
    }
}
