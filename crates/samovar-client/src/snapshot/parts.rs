//! Reads parts of a NAR: requests only the frames in which they are, if the file has a seek table.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};
use samovar_nix::narinfo::{Compression, NarInfo};

use super::Snapshots;
use super::seek_table::frames;
use crate::failed::Failed;

/// Maximum number of bytes of the file between two parts that are requested together. Receiving
/// them takes less time than another request.
const GAP_LEN_MAX: u64 = 256 << 10;

/// Length of a NAR, in bytes, up to which it is downloaded whole.
const WHOLE_LEN_MAX: u64 = 1 << 20;

/// A request for a part of the file of a NAR.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Bytes of the file. `None`: all.
    file: Option<Range<u64>>,
    /// Offset in the NAR at which the content of these bytes begins.
    start: u64,
    /// Indices of the parts of the NAR in the content.
    parts: Vec<usize>,
}

impl Snapshots {
    /// Downloads parts of a NAR, in ascending order, and calls `read` with the index of each and a
    /// reader of its content, which is not verified yet. `received`: counts the received bytes.
    ///
    /// # Errors
    ///
    /// The NAR cannot be downloaded or decompressed; errors of `read`.
    pub fn read_parts(
        &self,
        narinfo: &NarInfo,
        parts: &[Range<u64>],
        received: &Arc<AtomicU64>,
        read: &mut dyn FnMut(usize, &mut dyn Read) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (number, part) in parts.iter().enumerate() {
            if part.is_empty() {
                read(number, &mut io::empty())?;
            }
        }
        for run in self.runs(narinfo, parts) {
            let is_part = run.file.is_some();
            self.read_file(narinfo, run.file, received, |nar| {
                let mut at = run.start;
                for number in run.parts {
                    let part = parts.get(number).context("a part is missing")?;
                    skip(nar, part.start.saturating_sub(at))?;
                    let mut content = nar.take(part.end - part.start);
                    read(number, &mut content)?;
                    at = part.end - content.limit();
                }
                if is_part {
                    // The connection can be used again only after the whole response. All parts
                    // have been read, so an error does not matter.
                    io::copy(nar, &mut io::sink()).ok();
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn runs(&self, narinfo: &NarInfo, parts: &[Range<u64>]) -> Vec<Run> {
        let numbers = 0..parts.len();
        let is_wanted = |number: &usize| parts.get(*number).is_some_and(|part| !part.is_empty());
        let whole = Run {
            file: None,
            start: 0,
            parts: numbers.filter(is_wanted).collect(),
        };
        if whole.parts.is_empty() {
            return Vec::new();
        }
        if narinfo.nar_size <= WHOLE_LEN_MAX {
            return vec![whole];
        }
        let url = format!("/{}", narinfo.url);
        let runs = match narinfo.compression {
            Compression::None => runs(&whole.parts, parts, |part| Some((part.clone(), part.start))),
            // Ignore a seek table that cannot be read: the download reports a cause that stops it,
            // too.
            Compression::Zstd => match frames(self.cache.http(), &url, narinfo.nar_size) {
                Ok(Some(frames)) => runs(&whole.parts, parts, |part| {
                    let frames = frames.covering(part);
                    let (first, last) = (frames.first()?, frames.last()?);
                    Some((first.file.start..last.file.end, first.content.start))
                }),
                _ => None,
            },
            _ => None,
        };
        runs.unwrap_or_else(|| vec![whole])
    }
}

/// Joins parts that are close to each other. `find`: returns the bytes of the file in which a part
/// is, and the offset in the NAR at which their content begins.
fn runs(
    numbers: &[usize],
    parts: &[Range<u64>],
    find: impl Fn(&Range<u64>) -> Option<(Range<u64>, u64)>,
) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for number in numbers {
        let (file, start) = find(parts.get(*number)?)?;
        let last = runs.last_mut();
        match last.and_then(|run| run.file.as_mut().map(|known| (known, &mut run.parts))) {
            Some((known, parts)) if file.start <= known.end + GAP_LEN_MAX => {
                known.end = known.end.max(file.end);
                parts.push(*number);
            }
            _ => runs.push(Run {
                file: Some(file),
                start,
                parts: vec![*number],
            }),
        }
    }
    Some(runs)
}

fn skip(nar: &mut dyn Read, len: u64) -> anyhow::Result<()> {
    let skipped = io::copy(&mut nar.take(len), &mut io::sink());
    let skipped = skipped.map_err(|error| Failed::Unavailable.because(error))?;
    ensure!(skipped == len, "the NAR is shorter than its manifest");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_close_are_requested_together() {
        let parts = [
            10..20,
            20 + GAP_LEN_MAX..21 + GAP_LEN_MAX,
            22 + 2 * GAP_LEN_MAX..23 + 2 * GAP_LEN_MAX,
        ];
        let found = runs(&[0, 1, 2], &parts, |part| Some((part.clone(), part.start)));
        let run = |file: Range<u64>, parts: &[usize]| Run {
            start: file.start,
            file: Some(file),
            parts: parts.to_vec(),
        };
        let expected = [
            run(10..21 + GAP_LEN_MAX, &[0, 1]),
            run(parts[2].clone(), &[2]),
        ];
        assert_eq!(found.unwrap(), expected);
        assert_eq!(runs(&[0], &parts, |_| None), None);
    }
}
