//! Predicts how long a tree takes to create, read, delete and send, from its numbers.
//!
//! Pure: no input, output or clock. The model was derived from measurements of a Linux NFS 4.2
//! client and server, and of a tree of 42,246 files:
//!
//! | constant | value | measured |
//! | --- | --- | --- |
//! | RPCs per file and directory, `npm ci` | 7.8, 2 | 17,940 RPCs for 2,292 files, 91 directories |
//! | RPCs per file, `cp -r` | 4 | LOOKUP, OPEN, WRITE and CLOSE; a directory as for `npm ci` |
//! | RPCs per file and directory, cold reads | 3, 3 | OPEN, READ and CLOSE; READDIR and others |
//! | RPCs per deleted entry | 1 | REMOVE; 1.04 per file of the same tree |
//! | flushes per file, `sync` export | 4 | 9,253 flushes for 2,292 files and 91 directories |
//! | flushes per directory, `sync` export | 2 | the same: creating is one commit, writing another |
//! | flushes per deleted entry | 2 | 4,862 flushes for the same tree |
//! | RPCs per file, cached reads | 2 | OPEN and CLOSE; the data is in the client's cache |
//! | requests in flight, `npm ci` | 4 | the number of its threads; all others send one at a time |
//! | copying time per file | 0.083 ms | `cp -r` to a new ext4: 3.5 s for 42,246 files |
//! | reading time per file | 0.1 ms | start of a development server: 4 s for 40,374 files |
//! | files unpacked per second | 42,000 | to ext4, on two cores |
//! | flushes of an acknowledged upload | 14 | counted on ext4, for 9 calls of `fsync` |
//! | round trips of a push | 12 | the connection, and 11 requests for a tree in three parts |
//! | round trips of a pull | 7 | the connection, and 6 requests |

use samovar_text::human;
use samovar_workspace::profile::ContentNumbers;

use super::words::{duration, short};
use crate::size::grouped;

const INSTALL_RPCS: Rpcs = Rpcs(7.8, 2.0);
const COPY_RPCS: Rpcs = Rpcs(4.0, 2.0);
const COLD_READ_RPCS: Rpcs = Rpcs(3.0, 3.0);
const FILE_FLUSHES: f64 = 4.0;
const DIRECTORY_FLUSHES: f64 = 2.0;
const DELETE_FLUSHES: f64 = 2.0;
const READ_RPCS: f64 = 2.0;
const PARALLEL: f64 = 4.0;
const COPY_SECONDS: f64 = 0.000_083;
const READ_SECONDS: f64 = 0.0001;
const UNPACKED_PER_SECOND: f64 = 42_000.0;
const UPLOAD_FLUSHES: f64 = 14.0;
const PUSH_ROUND_TRIPS: f64 = 12.0;
const PULL_ROUND_TRIPS: f64 = 7.0;

/// RPCs per file and per directory.
#[derive(Debug, Clone, Copy)]
struct Rpcs(f64, f64);

/// The numbers of a tree that the predictions use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    pub(super) files: u64,
    /// Number of directories, including the root.
    pub(super) directories: u64,
    /// Sum of the sizes of all files, in bytes.
    pub(super) bytes: u64,
    /// Size of the tree as a NAR, in bytes.
    pub(super) nar_len: u64,
}

/// What the predictions assume about network, disk and programs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assumptions {
    /// Round-trip time, in seconds.
    pub(super) rtt: f64,
    /// Bandwidth, in megabits per second.
    pub(super) mbit: f64,
    /// Time of one flush of the disk cache of the server, in seconds.
    pub(super) flush: f64,
    /// Time that the installing program takes per file on a local disk, in seconds.
    pub(super) install: f64,
}

/// Measured times of single operations in a directory, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Costs {
    /// Create, write and close a small file.
    pub(super) create: f64,
    /// Open, read and close a small file that was just written.
    pub(super) read: f64,
    pub(super) stat: f64,
    pub(super) rename: f64,
    /// Write and fsync an existing small file.
    pub(super) fsync: f64,
    pub(super) unlink: f64,
    pub(super) mkdir: f64,
    pub(super) rmdir: f64,
}

/// A predicted duration.
#[derive(Debug, Clone)]
pub(super) struct Prediction {
    /// Stable name, for JSON.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) seconds: f64,
    /// The formula with all its numbers.
    pub(super) formula: String,
}

impl Prediction {
    fn new(id: &'static str, title: &'static str, seconds: f64, formula: String) -> Self {
        Self {
            id,
            title,
            seconds,
            formula,
        }
    }
}

/// Predicts the durations that need no measurement.
pub(super) fn predictions(tree: Tree, assumed: Assumptions) -> Vec<Prediction> {
    let model = Model::new(tree, assumed);
    let installs = model.installs().into_iter();
    installs
        .chain(model.copies())
        .chain(model.later())
        .chain(model.streams())
        .collect()
}

/// Predicts a push of one stream that is compressed while it is sent, in one thread.
pub(super) fn compressed(tree: Tree, assumed: Assumptions, contents: ContentNumbers) -> Prediction {
    let model = Model::new(tree, assumed);
    let len = contents.compressed_len;
    let (push, push_text) = model.push(len);
    let seconds = contents.compress_seconds + push;
    let compressing = duration(contents.compress_seconds);
    let formula = format!("compressing {compressing} + {push_text}");
    Prediction::new("push-compressed", "push, zstd level 1", seconds, formula)
}

/// Predicts the durations in a directory where single operations were measured.
pub(super) fn measured(tree: Tree, assumed: Assumptions, costs: Costs) -> Vec<Prediction> {
    Model::new(tree, assumed).measured(costs)
}

/// The numbers of all formulas, with those that occur in many of them as text.
struct Model {
    tree: Tree,
    assumed: Assumptions,
    files: f64,
    directories: f64,
    /// Number of files, for formulas.
    n: String,
    /// Number of directories, for formulas.
    d: String,
    rtt: String,
    flush: String,
}

impl Model {
    fn new(tree: Tree, assumed: Assumptions) -> Self {
        Self {
            tree,
            assumed,
            files: float(tree.files),
            directories: float(tree.directories),
            n: grouped(tree.files),
            d: grouped(tree.directories),
            rtt: duration(assumed.rtt),
            flush: duration(assumed.flush),
        }
    }

    fn installs(&self) -> [Prediction; 3] {
        let local = self.install();
        let (rpcs, rpcs_text) = self.rpcs(INSTALL_RPCS);
        let sent = self.sent(self.tree.bytes);
        let relaxed = local.max(rpcs / PARALLEL) + self.transfer(self.tree.bytes);
        let relaxed_text = format!("max({}, {rpcs_text} / 4) + {sent}", duration(local));
        let (strict, strict_text) = self.flushed(relaxed);
        let new = Prediction::new;
        [
            new(
                "install-local",
                "install, local disk",
                local,
                self.per_file(self.assumed.install),
            ),
            new(
                "install-nfs-async",
                "install, NFS async",
                relaxed,
                relaxed_text,
            ),
            new("install-nfs-sync", "install, NFS sync", strict, strict_text),
        ]
    }

    /// Predicts copies of the tree by a program that waits for each RPC.
    fn copies(&self) -> [Prediction; 3] {
        let local = self.files * COPY_SECONDS;
        let local_text = self.per_file(COPY_SECONDS);
        let (relaxed, relaxed_text) = self.waiting(local, COPY_RPCS);
        let (strict, strict_text) = self.flushed(relaxed);
        let new = Prediction::new;
        [
            new("copy-local", "cp -r, local disk", local, local_text),
            new("copy-nfs-async", "cp -r, NFS async", relaxed, relaxed_text),
            new("copy-nfs-sync", "cp -r, NFS sync", strict, strict_text),
        ]
    }

    /// Predicts what is done with an installed tree.
    fn later(&self) -> [Prediction; 4] {
        let Self {
            n, d, rtt, flush, ..
        } = self;
        let per_entry = self.assumed.rtt + DELETE_FLUSHES * self.assumed.flush;
        let removal = (self.files + self.directories) * per_entry;
        let removal_text = format!("({n} + {d}) × ({rtt} + 2 flushes × {flush})");
        let local = self.reading();
        let local_text = self.per_file(READ_SECONDS);
        let (cold, cold_text) = self.waiting(local, COLD_READ_RPCS);
        let cached = local + READ_RPCS * self.files * self.assumed.rtt;
        let cached_text = format!("{} + 2 RPCs × {n} × {rtt}", duration(local));
        let new = Prediction::new;
        [
            new("delete-nfs-sync", "delete, NFS sync", removal, removal_text),
            new("read-local", "read all, local disk", local, local_text),
            new("read-nfs-cold", "read all, NFS, cold", cold, cold_text),
            new("read-nfs", "read all, NFS, cached", cached, cached_text),
        ]
    }

    fn streams(&self) -> [Prediction; 2] {
        let (push, push_text) = self.push(self.tree.nar_len);
        let transfer = self.transfer(self.tree.nar_len);
        let pull =
            PULL_ROUND_TRIPS * self.assumed.rtt + transfer.max(self.files / UNPACKED_PER_SECOND);
        let pull_text = format!(
            "7 round trips × {} + max({}, {} files / 42,000 per s)",
            self.rtt,
            self.sent(self.tree.nar_len),
            self.n
        );
        [
            Prediction::new("push", "push as one stream", push, push_text),
            Prediction::new("pull", "pull as one stream", pull, pull_text),
        ]
    }

    /// Returns the time of a push of `len` bytes until it is acknowledged, with its formula.
    fn push(&self, len: u64) -> (f64, String) {
        let Self { rtt, flush, .. } = self;
        let seconds = PUSH_ROUND_TRIPS * self.assumed.rtt
            + self.transfer(len)
            + UPLOAD_FLUSHES * self.assumed.flush;
        let sent = self.sent(len);
        let text = format!("12 round trips × {rtt} + {sent} + 14 flushes × {flush}");
        (seconds, text)
    }

    /// Returns the time of a program that computes for `local` seconds, transfers all contents, and
    /// waits for each RPC before it sends the next, with its formula.
    fn waiting(&self, local: f64, rpcs: Rpcs) -> (f64, String) {
        let (rpcs, rpcs_text) = self.rpcs(rpcs);
        let seconds = local + rpcs + self.transfer(self.tree.bytes);
        let sent = self.sent(self.tree.bytes);
        (
            seconds,
            format!("{} + {rpcs_text} + {sent}", duration(local)),
        )
    }

    /// Adds the flushes of a `sync` export for each created file and directory.
    fn flushed(&self, relaxed: f64) -> (f64, String) {
        let Self { n, d, flush, .. } = self;
        let flushes = FILE_FLUSHES * self.files + DIRECTORY_FLUSHES * self.directories;
        let text = format!(
            "{} + (4 × {n} + 2 × {d}) flushes × {flush}",
            duration(relaxed)
        );
        (relaxed + flushes * self.assumed.flush, text)
    }

    /// Returns the round trips of RPCs that are sent one at a time, in seconds, with their formula.
    fn rpcs(&self, Rpcs(per_file, per_directory): Rpcs) -> (f64, String) {
        let Self { n, d, rtt, .. } = self;
        let count = per_file * self.files + per_directory * self.directories;
        let text = format!("({per_file} × {n} + {per_directory} × {d}) RPCs × {rtt}");
        (count * self.assumed.rtt, text)
    }

    fn per_file(&self, seconds: f64) -> String {
        format!("{} files × {}", self.n, duration(seconds))
    }

    fn measured(&self, costs: Costs) -> Vec<Prediction> {
        let Self { n, d, .. } = self;
        let install = self.files * costs.create + self.directories * costs.mkdir;
        let removal = self.files * costs.unlink + self.directories * costs.rmdir;
        let of_entries = |file: f64, directory: f64| {
            format!("{n} × {} + {d} × {}", duration(file), duration(directory))
        };
        vec![
            Prediction::new(
                "install-measured",
                "install, measured",
                self.install() + install,
                format!(
                    "{} + {}",
                    duration(self.install()),
                    of_entries(costs.create, costs.mkdir)
                ),
            ),
            Prediction::new(
                "read-measured",
                "read all, measured",
                self.reading() + self.files * costs.read,
                format!(
                    "{} + {n} × {}",
                    duration(self.reading()),
                    duration(costs.read)
                ),
            ),
            Prediction::new(
                "delete-measured",
                "delete, measured",
                removal,
                of_entries(costs.unlink, costs.rmdir),
            ),
        ]
    }

    /// Returns the time of an installation on a local disk, in seconds.
    fn install(&self) -> f64 {
        self.files * self.assumed.install
    }

    /// Returns the time that a program takes to read all files from a local disk, in seconds.
    fn reading(&self) -> f64 {
        self.files * READ_SECONDS
    }

    /// Returns the time to send `len` bytes, in seconds.
    fn transfer(&self, len: u64) -> f64 {
        float(len) * 8.0 / (self.assumed.mbit * 1e6)
    }

    fn sent(&self, len: u64) -> String {
        format!("{} / {} Mbit/s", human(len), short(self.assumed.mbit))
    }
}

fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree of the user who asked, on a home network with a server with one disk.
    const CASE: Tree = Tree {
        files: 40_374,
        directories: 3_578,
        // 405 MB were allocated; the same kind of tree has 72 % of that as contents.
        bytes: 292_000_000,
        nar_len: 301_000_000,
    };

    const ASSUMED: Assumptions = Assumptions {
        rtt: 0.000_28,
        mbit: 933.0,
        flush: 0.0106,
        install: 0.0006,
    };

    fn seconds(tree: Tree, assumed: Assumptions, id: &str) -> f64 {
        let all = predictions(tree, assumed);
        all.iter().find(|it| it.id == id).unwrap().seconds
    }

    #[track_caller]
    fn close(predicted: f64, measured: f64, percent: f64) {
        let deviation = (predicted / measured - 1.0) * 100.0;
        assert!(
            deviation.abs() <= percent,
            "{predicted} for {measured}: {deviation} %"
        );
    }

    #[test]
    fn the_five_numbers_of_the_case() {
        for (id, measured) in [
            ("install-local", 26.0),
            ("install-nfs-sync", 29.0 * 60.0 + 12.0),
            ("install-nfs-async", 31.0),
            ("read-nfs", 29.0),
            ("read-local", 4.0),
        ] {
            close(seconds(CASE, ASSUMED, id), measured, 25.0);
        }
    }

    #[test]
    fn flushes_and_requests_are_those_that_were_counted() {
        let (files, directories) = (2_292.0, 91.0);
        let Rpcs(per_file, per_directory) = INSTALL_RPCS;
        let rpcs = per_file * files + per_directory * directories;
        close(rpcs, 17_940.0, 2.0);
        // REMOVE: 1.04 per file.
        close((files + directories) / files, 1.04, 1.0);
        let flushes = FILE_FLUSHES * files + DIRECTORY_FLUSHES * directories;
        close(flushes, 9_253.0, 2.0);
        close(DELETE_FLUSHES * (files + directories), 4_862.0, 3.0);
    }

    #[test]
    fn one_stream_takes_what_it_took() {
        let tree = Tree {
            files: 42_246,
            directories: 3_824,
            bytes: 304_000_000,
            nar_len: 313_501_856,
        };
        let assumed = Assumptions {
            mbit: 940.0,
            flush: 0.000_95,
            ..ASSUMED
        };
        close(seconds(tree, assumed, "push"), 3.06, 25.0);
        close(seconds(tree, assumed, "pull"), 2.67, 25.0);
    }

    #[test]
    fn a_compressed_stream_takes_what_it_took() {
        let contents = ContentNumbers {
            duplicates: 0,
            duplicate_bytes: 0,
            compressed_len: 70_200_000,
            // 313.5 MB at 400 MB/s.
            compress_seconds: 0.78,
        };
        let assumed = Assumptions {
            mbit: 940.0,
            flush: 0.000_95,
            ..ASSUMED
        };
        close(compressed(CASE, assumed, contents).seconds, 1.48, 25.0);
    }

    #[test]
    fn formulas_show_their_numbers() {
        let all = predictions(CASE, ASSUMED);
        let formula = |id: &str| &all.iter().find(|it| it.id == id).unwrap().formula;
        assert_eq!(formula("install-local"), "40,374 files × 0.6 ms");
        assert_eq!(
            formula("install-nfs-async"),
            "max(24.2 s, (7.8 × 40,374 + 2 × 3,578) RPCs × 0.28 ms / 4) + 278.4 MiB / 933 Mbit/s"
        );
        assert_eq!(
            formula("copy-nfs-async"),
            "3.4 s + (4 × 40,374 + 2 × 3,578) RPCs × 0.28 ms + 278.4 MiB / 933 Mbit/s"
        );
        assert_eq!(
            formula("copy-nfs-sync"),
            "53.1 s + (4 × 40,374 + 2 × 3,578) flushes × 10.6 ms"
        );
        assert_eq!(
            formula("read-nfs-cold"),
            "4 s + (3 × 40,374 + 3 × 3,578) RPCs × 0.28 ms + 278.4 MiB / 933 Mbit/s"
        );
        assert_eq!(
            formula("push"),
            "12 round trips × 0.28 ms + 287.0 MiB / 933 Mbit/s + 14 flushes × 10.6 ms"
        );
        assert_eq!(
            formula("install-nfs-sync"),
            "26.7 s + (4 × 40,374 + 2 × 3,578) flushes × 10.6 ms"
        );
    }

    #[test]
    fn measured_costs_replace_the_model() {
        let costs = Costs {
            create: 0.04,
            mkdir: 0.02,
            ..Costs::default()
        };
        let all = measured(CASE, ASSUMED, costs);
        close(all[0].seconds, 24.2 + 40_374.0 * 0.04 + 3_578.0 * 0.02, 0.1);
        assert_eq!(all[0].formula, "24.2 s + 40,374 × 40 ms + 3,578 × 20 ms");
    }

    #[test]
    fn an_empty_tree_takes_no_time() {
        let empty = Tree {
            files: 0,
            directories: 0,
            bytes: 0,
            nar_len: 0,
        };
        for prediction in predictions(empty, ASSUMED) {
            assert!(prediction.seconds <= 0.2, "{prediction:?}");
        }
    }
}
