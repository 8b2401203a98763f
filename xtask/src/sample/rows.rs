//! Fills a store with a large database, whose rows are those that Nix would write, but without
//! files.
//!
//! Nix creates the database, so that tables, indexes and settings are its own. This module inserts
//! the rows, because Nix would take hours to register a million paths one by one.

use std::io::{self, Write};

use anyhow::{Result, bail, ensure};
use serde_json::json;
use testkit::random::SplitMix64;

use super::graph::{self, Recipe};
use super::random::{Node, file_len};
use super::store::{STORE_DIR, Store};
use super::{Manifest, trees};
use crate::command::{feed, progress};

/// Names of both closures, and the number and width of the layers in each. Each also has a top.
const CLOSURES: [(&str, usize, usize); 2] = [("closure_400", 21, 19), ("closure_10000", 99, 101)];

/// Minimum number of rows for which the large closure is written; in a smaller store it would be
/// most of the contents.
const LARGE_CLOSURE_MIN: u64 = 20_000;

/// Minimum number of rows: the small closure and some other paths.
const PATH_COUNT_MIN: u64 = 1000;

/// Maximum number of paths in the manifest, selected at equal distances. A manifest of a million
/// paths would take 60 MB.
const NAMED_COUNT: u64 = 10_000;

/// Number of rows per SQL statement. More would not be faster.
const BATCH_COUNT: usize = 200;

/// Fills `store` up to `path_count` valid paths.
///
/// | key | path |
/// | --- | --- |
/// | `empty`, `small`, `big`, `folder` | paths with files: an empty file, a line, 1 MB, 300 files |
/// | `closure_400`, `closure_10000` | tops of closures with exactly this many rows |
/// | `rows` | up to 10,000 of the paths, at equal distances |
/// | `path_count` | number of valid paths |
pub(super) fn fill(store: &Store, path_count: u64) -> Result<Manifest> {
    if path_count < PATH_COUNT_MIN {
        bail!("at least {PATH_COUNT_MIN} paths");
    }
    let sources = [
        ("empty", Node::file("")),
        ("small", Node::file("one line\n")),
        ("big", trees::noise(1_000_000, 1)),
        ("folder", trees::node_modules(300, 1, 5)),
    ];
    let added = store.add(&sources)?;
    progress(&format!("  {path_count} rows"));

    let mut rows = Rows::new(path_count - added.len() as u64);
    let fed = feed(store.database_shell()?.arg("-batch"), |out| {
        rows.write(path_count, out)
    })?;
    // SQLite prints the new value of each pragma, so check that output.
    ensure!(
        fed.lines().eq(["off", "exclusive", "wal"]),
        "sqlite3 said {fed}"
    );

    let mut manifest = Manifest::new();
    for ((name, _), path) in sources.iter().zip(&added) {
        manifest.insert((*name).into(), json!(path));
    }
    for (name, top) in &rows.tops {
        let closure = store.closure(top)?;
        let wanted = name.trim_start_matches("closure_");
        ensure!(
            closure.len().to_string() == wanted,
            "Nix finds {} paths in {name}",
            closure.len()
        );
        manifest.insert((*name).into(), json!(top));
    }
    manifest.insert("rows".into(), json!(rows.named));
    manifest.insert("path_count".into(), json!(path_count));
    Ok(manifest)
}

/// Row IDs of a package that was written: that of its output, and that of its derivation if it has
/// one.
#[derive(Debug, Clone, Copy)]
struct Package {
    output: u64,
    derivation: Option<u64>,
}

/// Writes the rows of packages, each after the rows that it refers to.
#[derive(Debug)]
struct Rows {
    random: SplitMix64,
    left: u64,
    next_id: u64,
    paths: Batch,
    references: Batch,
    outputs: Batch,
    named: Vec<String>,
    named_every: u64,
    tops: Vec<(&'static str, String)>,
}

impl Rows {
    fn new(count: u64) -> Self {
        Self {
            random: SplitMix64::new(1),
            left: count,
            // Start above the IDs that Nix has assigned.
            next_id: 1000,
            paths: Batch::new(
                "ValidPaths (id, path, hash, registrationTime, deriver, narSize, ultimate, sigs, \
                 ca)",
            ),
            references: Batch::new("Refs (referrer, reference)"),
            outputs: Batch::new("DerivationOutputs (drv, id, path)"),
            named: Vec::new(),
            named_every: count.div_ceil(NAMED_COUNT),
            tops: Vec::new(),
        }
    }

    fn write(&mut self, path_count: u64, out: &mut dyn Write) -> io::Result<()> {
        // The database need not survive a power failure, and a WAL would hold everything twice.
        out.write_all(
            b".bail on\npragma journal_mode = off; pragma locking_mode = exclusive;\n\
              pragma synchronous = off; pragma cache_size = -1000000;\nbegin;\n",
        )?;
        for (name, layers, width) in CLOSURES {
            if name != "closure_10000" || path_count >= LARGE_CLOSURE_MIN {
                let top = self.closure(&graph::layers(name, layers, width), out)?;
                self.tops.push((name, top));
            }
        }
        self.mass(out)?;
        for batch in [&mut self.paths, &mut self.references, &mut self.outputs] {
            batch.flush(out)?;
        }
        out.write_all(b"commit;\npragma journal_mode = wal;\n")
    }

    /// Writes a closure of outputs only, because derivations would add to the number of rows.
    fn closure(&mut self, recipes: &[Recipe], out: &mut dyn Write) -> io::Result<String> {
        let mut ids = Vec::with_capacity(recipes.len());
        let mut last = String::new();
        for recipe in recipes {
            let references = recipe.inputs.iter().map(|&input| ids[input]).collect();
            last = self.path(&recipe.name);
            let row = Row::of_output(last.clone(), None, references);
            ids.push(self.row(row, out)?);
        }
        Ok(last)
    }

    /// Writes packages that each refer to some recent packages and to a few popular ones.
    fn mass(&mut self, out: &mut dyn Write) -> io::Result<()> {
        const NEAR: usize = 2000;
        const POPULAR: usize = 5;
        let mut packages: Vec<Package> = Vec::new();
        while self.left > 0 {
            let mut inputs = Vec::new();
            if packages.len() > POPULAR {
                let near = packages.len().min(NEAR);
                // The number of references: six on average, nineteen at most.
                let wanted = self.random.index(20).min(self.random.index(20));
                for _ in 0..wanted {
                    let place = match self.random.between(0, 4) {
                        0 => self.random.index(POPULAR),
                        _ => packages.len() - 1 - self.random.index(near),
                    };
                    inputs.push(packages[place]);
                }
            }
            packages.push(self.package(&inputs, out)?);
        }
        Ok(())
    }

    fn package(&mut self, inputs: &[Package], out: &mut dyn Write) -> io::Result<Package> {
        let name = self.name();
        if self.random.between(0, 10) == 0 {
            let row = Row {
                content_address: Some("fixed:r:sha256:"),
                ..Row::of_output(self.path(&format!("{name}-source")), None, Vec::new())
            };
            let output = self.row(row, out)?;
            return Ok(Package {
                output,
                derivation: None,
            });
        }
        let derivation_path = self.path(&format!("{name}.drv"));
        let output_path = self.path(&name);
        let mut derivation = None;
        // The derivation of a substituted path is rarely present.
        let is_built = self.random.between(0, 2) == 0;
        if is_built && self.left > 1 {
            let row = Row {
                path: derivation_path.clone(),
                content_address: Some("text:sha256:"),
                references: inputs.iter().filter_map(|input| input.derivation).collect(),
                ..Row::default()
            };
            let id = self.row(row, out)?;
            let line = format!("{id},'out','{output_path}'");
            self.outputs.add(&line, out)?;
            derivation = Some(id);
        }
        let mut references: Vec<u64> = inputs.iter().map(|input| input.output).collect();
        if self.random.between(0, 4) == 0 {
            // Many outputs refer to themselves.
            references.push(self.next_id);
        }
        let row = Row {
            is_built,
            ..Row::of_output(output_path, Some(derivation_path), references)
        };
        let output = self.row(row, out)?;
        Ok(Package { output, derivation })
    }

    fn row(&mut self, row: Row, out: &mut dyn Write) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.left -= 1;
        let hash = [(); 4]
            .map(|()| format!("{:016x}", self.random.next()))
            .concat();
        let time = 1_600_000_000 + id * 60;
        let nar_size = 120 + 8 * file_len(&mut self.random);
        let quoted = |text: &Option<String>| match text {
            Some(text) => format!("'{text}'"),
            None => "null".to_owned(),
        };
        let is_substituted = row.deriver.is_some() && !row.is_built;
        let signatures = is_substituted
            .then(|| format!("cache.example.org-1:{}", self.text(BASE_64, 85) + "Q=="));
        let ultimate = if row.is_built { "1" } else { "null" };
        let content_address = row
            .content_address
            // A hash of 256 bits has 52 base-32 digits of five bits, 260 bits in all, so the first
            // digit is 0 or 1.
            .map(|kind| format!("{kind}1{}", self.text(BASE_32, 51)));
        let line = format!(
            "{id},'{}','sha256:{hash}',{time},{},{nar_size},{ultimate},{},{}",
            row.path,
            quoted(&row.deriver),
            quoted(&signatures),
            quoted(&content_address),
        );
        self.paths.add(&line, out)?;
        let mut references = row.references;
        references.sort_unstable();
        references.dedup();
        for reference in references {
            self.references.add(&format!("{id},{reference}"), out)?;
        }
        if self.left.is_multiple_of(self.named_every) {
            self.named.push(row.path);
        }
        Ok(id)
    }

    fn name(&mut self) -> String {
        const WORDS: [&str; 16] = [
            "python3.11",
            "lib",
            "perl5.36",
            "rust",
            "haskell",
            "gtk",
            "qt",
            "xorg",
            "font",
            "linux",
            "kernel",
            "tools",
            "data",
            "wrapper",
            "unwrapped",
            "json",
        ];
        let [one, other] = [(); 2].map(|()| WORDS[self.random.index(WORDS.len())]);
        let [major, minor, patch] = [9, 30, 100].map(|bound| self.random.between(0, bound));
        format!("{one}-{other}-{major}.{minor}.{patch}")
    }

    fn path(&mut self, name: &str) -> String {
        format!("{STORE_DIR}/{}-{name}", self.text(BASE_32, 32))
    }

    /// Returns random digits of an alphabet of at most 64.
    fn text(&mut self, alphabet: &[u8], len: usize) -> String {
        (0..len)
            .map(|_| char::from(alphabet[self.random.index(alphabet.len())]))
            .collect()
    }
}

const BASE_32: &[u8] = b"0123456789abcdfghijklmnpqrsvwxyz";
const BASE_64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The properties in which the rows of different kinds of paths differ.
#[derive(Debug, Default)]
struct Row {
    path: String,
    deriver: Option<String>,
    references: Vec<u64>,
    is_built: bool,
    /// Prefix of the content address, before its hash; `None` if the path is not content-addressed.
    content_address: Option<&'static str>,
}

impl Row {
    fn of_output(path: String, deriver: Option<String>, references: Vec<u64>) -> Self {
        Self {
            path,
            deriver,
            references,
            ..Self::default()
        }
    }
}

/// Rows of one table that are written together by one SQL statement.
#[derive(Debug)]
struct Batch {
    into: &'static str,
    text: String,
    count: usize,
}

impl Batch {
    fn new(into: &'static str) -> Self {
        Self {
            into,
            text: String::new(),
            count: 0,
        }
    }

    fn add(&mut self, values: &str, out: &mut dyn Write) -> io::Result<()> {
        self.text.push_str(if self.count == 0 { "(" } else { ",(" });
        self.text.push_str(values);
        self.text.push(')');
        self.count += 1;
        if self.count == BATCH_COUNT {
            self.flush(out)?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.count > 0 {
            writeln!(out, "insert into {} values {};", self.into, self.text)?;
            self.text.clear();
            self.count = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(count: u64) -> String {
        let mut out = Vec::new();
        Rows::new(count).write(count, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_run_writes_the_same_number_of_identical_rows() {
        for count in [1000, 1001, 20_000] {
            let text = written(count);
            assert_eq!(text, written(count));
            assert_eq!(text.matches("'sha256:").count() as u64, count);
        }
    }
}
