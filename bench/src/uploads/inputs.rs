//! The store paths that are uploaded. They are the same in every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::nar::Node;
use testkit::nix::{hash_part, local};
use testkit::random::SplitMix64;

/// Number of large paths, and of files in each.
const LARGE_COUNT: u64 = 3;
const FILE_COUNT: usize = 40;

/// A chroot store, and binary caches with the files that `nix copy` sends for its paths.
#[derive(Debug)]
pub(crate) struct Inputs {
    dir: PathBuf,
    pub(crate) large: Vec<String>,
    pub(crate) small: Vec<String>,
    /// Sum of the sizes of the large paths' NARs, in bytes.
    pub(crate) large_nar_len: u64,
}

/// A file that is uploaded: its name below the cache's URL, and its content.
pub(crate) type Upload = (String, Vec<u8>);

impl Inputs {
    /// Opens the paths in `dir`. Creates them if there are none; few and small ones if `is_check`.
    pub(crate) fn open(dir: &Path, is_check: bool) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        let manifest = dir.join("uploads.json");
        if !manifest.exists() {
            crate::progress("creating the paths (the first time: some minutes)");
            let (large_len, small_count) = if is_check {
                (200_000, 70)
            } else {
                (209_000_000 / 3, 10_000)
            };
            fs::write(&manifest, create(&dir, large_len, small_count)?.to_string())?;
        }
        let manifest: Value = serde_json::from_slice(&fs::read(manifest)?)?;
        let list = |name: &str| {
            let paths = manifest[name].as_array().into_iter().flatten();
            paths
                .filter_map(|it| Some(it.as_str()?.to_owned()))
                .collect()
        };
        Ok(Self {
            large: list("large"),
            small: list("small"),
            large_nar_len: manifest["large_nar_len"].as_u64().context("no length")?,
            dir,
        })
    }

    /// Returns the URI of the store.
    pub(crate) fn store_uri(&self) -> String {
        local(&self.dir.join("store"))
    }

    /// Returns a sentence for the report.
    pub(crate) fn remark(&self) -> String {
        let megabytes = self.large_nar_len / 1_000_000;
        format!("The NARs of the large paths have {megabytes} MB in total.")
    }

    /// Returns the NAR file and the narinfo of each path in this compression.
    pub(crate) fn uploads(&self, compression: &str, paths: &[String]) -> Result<Vec<[Upload; 2]>> {
        let cache = self.dir.join(compression);
        let read = |name: String| -> Result<Upload> {
            let content = fs::read(cache.join(&name)).with_context(|| name.clone())?;
            Ok((name, content))
        };
        let files = paths.iter().map(|path| {
            let narinfo = read(format!("{}.narinfo", hash_part(path)))?;
            let text = String::from_utf8_lossy(&narinfo.1);
            let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
            Ok([
                read(url.context("a narinfo without URL")?.to_owned())?,
                narinfo,
            ])
        });
        files.collect()
    }
}

/// Creates the store and the caches; returns the manifest.
fn create(dir: &Path, large_len: usize, small_count: usize) -> Result<Value> {
    let sources = tempfile::Builder::new()
        .prefix("sources-")
        .tempdir_in(dir)?;
    let mut large = Vec::new();
    for number in 0..LARGE_COUNT {
        let mut random = SplitMix64::new(number);
        let file = |index: usize| {
            // The sizes differ, and their mean is that of equal ones.
            let len = large_len * (2 * index + 1) / (FILE_COUNT * FILE_COUNT);
            (
                format!("file{index:02}"),
                Node::file(contents(&mut random, len)),
            )
        };
        let tree: Node = Node::dir((0..FILE_COUNT).map(file));
        let path = sources.path().join(format!("large{number}"));
        tree.write_tree(&path)?;
        large.push(path);
    }
    let mut small = Vec::new();
    for number in 0..small_count {
        let path = sources.path().join(format!("small{number}"));
        fs::write(&path, format!("small path {number}\n").repeat(20))?;
        small.push(path);
    }
    let add = |paths: &[PathBuf]| -> Result<Vec<String>> {
        let mut added = Vec::new();
        for paths in paths.chunks(500) {
            let lines = nix(dir, "nix-store", |command| command.arg("--add").args(paths))?;
            added.extend(lines.lines().map(str::to_owned));
        }
        Ok(added)
    };
    let (large, small) = (add(&large)?, add(&small)?);
    for (paths, compression) in [(&large, "xz"), (&small, "zstd")] {
        let cache = format!(
            "file://{}/{compression}?compression={compression}",
            dir.display()
        );
        for paths in paths.chunks(500) {
            nix(dir, "nix", |it| {
                it.args(["copy", "--to", &cache]).args(paths)
            })?;
        }
    }
    let lens = nix(dir, "nix-store", |it| {
        it.args(["--query", "--size"]).args(&large)
    })?;
    let lens: Result<Vec<u64>, _> = lens.lines().map(str::parse).collect();
    Ok(json!({"large": large, "small": small, "large_nar_len": lens?.iter().sum::<u64>()}))
}

/// Runs one of Nix's programs on the store below `dir`; returns its output.
fn nix(
    dir: &Path,
    program: &str,
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String> {
    let mut command = testkit::nix::nix(program, &dir.join("home"));
    let command = arguments(&mut command)
        .arg("--store")
        .arg(dir.join("store"));
    let done = command
        .args(["--option", "fsync-metadata", "false"])
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program}: {}", said.trim_end());
    Ok(String::from_utf8(done.stdout)?)
}

/// Returns `len` bytes that zstd compresses about as well as programs and libraries: a mix of
/// repetitions, words of a vocabulary, and noise.
fn contents(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..4000)
        .map(|_| {
            let len = 3 + random.index(10);
            random.bytes(len)
        })
        .collect();
    // Small numbers are more frequent.
    let skewed = |random: &mut SplitMix64, end| random.index(end).min(random.index(end));
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        let kind = random.below(100);
        if kind < 22 && bytes.len() > 64 {
            let end = bytes.len();
            let start = end - 1 - skewed(random, end.min(1 << 20));
            let count = 8 + random.index(56);
            bytes.extend_from_within(start..(start + count).min(end));
        } else if kind < 60 {
            bytes.extend_from_slice(
                words
                    .get(skewed(random, words.len()))
                    .map_or(&[], Vec::as_slice),
            );
        } else {
            let count = 2 + random.index(7);
            bytes.extend(random.bytes(count).iter().map(|byte| byte % 64));
        }
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_reproducible_and_compress_like_programs() {
        let one = contents(&mut SplitMix64::new(1), 1_000_000);
        assert_eq!(one.len(), 1_000_000);
        assert!(one == contents(&mut SplitMix64::new(1), 1_000_000));
        assert!(one != contents(&mut SplitMix64::new(2), 1_000_000));
        let packed_len = zstd::encode_all(one.as_slice(), 3).unwrap().len();
        assert!((350_000..450_000).contains(&packed_len), "{packed_len}");
    }
}
