//! `sample-store`: creates a sample store with the real Nix, for machines that have no store.
//!
//! Contents and names are the same in every run and on every machine. The manifest `sample.json`
//! beside the store lists the paths that tests and benchmarks use; see [`test_store`],
//! [`bench_store`] and [`rows`].

mod graph;
mod random;
mod rows;
mod store;
mod test_store;
mod trees;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use self::random::Node;
pub(crate) use self::store::STORE_DIR;
use self::store::{Features, Import, Store};
use crate::command::progress;

/// Version of the contents, to be incremented with each change: older stores are recreated.
const FORMAT: u64 = 2;

/// Name of the manifest, in the folder of a store.
pub(crate) const MANIFEST: &str = "sample.json";

/// Kinds of sample stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A small store with all special cases, for tests and for trying out the server.
    Test,
    /// A large store with ordinary contents, for benchmarks.
    Bench,
    /// A store with this number of valid paths, nearly all without files; see [`rows::fill`].
    Rows(u64),
}

/// The manifest of a store. Its values are paths, lists of paths, and counts.
pub(crate) type Manifest = Map<String, Value>;

/// Creates a sample store in `dir`, unless a complete one exists. Fails if `dir` contains something
/// else, Nix is missing or fails, or the disk is full.
pub(crate) fn make(dir: &Path, kind: Kind) -> Result<()> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent)?;
    let dir = parent
        .canonicalize()?
        .join(dir.file_name().context("the store needs a folder")?);

    // Test runs may call this concurrently: later ones wait, and find the complete store.
    let lock = fs::File::create(with_suffix(&dir, ".lock"))?;
    lock.lock()?;
    if is_complete(&dir, kind)? {
        return Ok(());
    }
    progress(&format!(
        "making a sample store in {} with Nix (seconds to a minute)",
        dir.display()
    ));
    let started = Instant::now();
    // Renamed when complete, so that a folder of the final name is always a complete store.
    let partial = with_suffix(&dir, ".partial");
    remove_tree(&partial)?;
    fs::create_dir(&partial)?;
    let store = Store::new(&partial)?;
    let mut manifest = match kind {
        Kind::Test => test_store::fill(&store)?,
        Kind::Bench => bench_store(&store)?,
        Kind::Rows(path_count) => rows::fill(&store, path_count)?,
    };
    let path_count = match kind {
        Kind::Rows(path_count) => path_count,
        Kind::Test | Kind::Bench => {
            let valid_paths = store.valid_paths()?;
            manifest.insert("valid_paths".into(), json!(valid_paths));
            valid_paths.len() as u64
        }
    };
    manifest.insert("format".into(), json!([kind_name(kind), FORMAT]));
    store.finish()?;
    fs::write(
        partial.join(MANIFEST),
        serde_json::to_string_pretty(&manifest)? + "\n",
    )?;
    fs::rename(&partial, &dir)?;
    progress(&format!(
        "sample store: {path_count} valid paths in {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Fills the store for benchmarks.
///
/// | key | path |
/// | --- | --- |
/// | `empty`, `big` | an empty file; 10 MB, incompressible |
/// | `mixed` | ten files up to 10 MB |
/// | `tree` | about 45,000 small files in folders, 400 MB |
/// | `top` | the top of a closure of 401 paths, about 130 MB |
/// | `small` | 2,000 small paths with up to 20 references |
fn bench_store(store: &Store) -> Result<Manifest> {
    let mut sources = vec![
        ("empty", Node::file("")),
        ("big", trees::noise(10_000_000, 1)),
    ];
    const MIXED: [(&str, u64); 10] = [
        ("mixed-0", 100),
        ("mixed-1", 1_000),
        ("mixed-2", 4_096),
        ("mixed-3", 20_000),
        ("mixed-4", 65_536),
        ("mixed-5", 200_000),
        ("mixed-6", 500_000),
        ("mixed-7", 1_000_000),
        ("mixed-8", 3_000_000),
        ("mixed-9", 10_000_000),
    ];
    sources.extend(MIXED.map(|(name, len)| (name, trees::noise(len, len))));
    let added = store.add(&sources)?;

    progress("  a tree of 45,000 files");
    let tree = store.instantiate(Features::Stable, &single_derivation("tree"))?;
    let tree = tree.first().context("one derivation")?;
    let tree_path = tree.outputs.get("out").context("an output")?.clone();
    store.import(&[Import {
        path: tree_path.clone(),
        node: trees::node_modules(45_000, 1, 45),
        references: Vec::new(),
        deriver: tree.drv.clone(),
    }])?;

    progress("  a closure of 401 paths and 2,000 small ones");
    let recipes = graph::with_libraries(graph::layers("lib", 40, 10), 3);
    let closure = graph::register(store, &recipes)?;
    let small = graph::register(store, &graph::many("small", 2000, 2))?;
    let top = closure
        .last()
        .and_then(|top| top.outputs.get("out"))
        .context("the closure's top")?;
    let small: Vec<&String> = small
        .iter()
        .filter_map(|one| one.outputs.get("out"))
        .collect();

    let mut manifest = Manifest::new();
    manifest.insert("empty".into(), json!(added.first()));
    manifest.insert("big".into(), json!(added.get(1)));
    manifest.insert("mixed".into(), json!(added.get(2..)));
    manifest.insert("tree".into(), json!(tree_path));
    manifest.insert("top".into(), json!(top));
    manifest.insert("small".into(), json!(small));
    Ok(manifest)
}

/// Returns a list of one derivation, which is never built.
fn single_derivation(name: &str) -> String {
    format!(
        "[ (derivation {{ name = \"{name}\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; \
         args = [ \"-c\" \"npm install\" ]; }}) ]"
    )
}

/// Returns whether `dir` is a complete store of this kind and format; removes one of another
/// format.
fn is_complete(dir: &Path, kind: Kind) -> Result<bool> {
    let text = match fs::read_to_string(dir.join(MANIFEST)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
                bail!("{} is not empty and not a sample store", dir.display());
            }
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let manifest: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is damaged", dir.join(MANIFEST).display()))?;
    if manifest.get("format") == Some(&json!([kind_name(kind), FORMAT])) {
        return Ok(true);
    }
    remove_tree(dir)?;
    Ok(false)
}

fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Test => "test".to_owned(),
        Kind::Bench => "bench".to_owned(),
        Kind::Rows(path_count) => format!("{path_count} rows"),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes a store. First makes its read-only folders writable, as users other than root require.
fn remove_tree(dir: &Path) -> Result<()> {
    fn make_writable(dir: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                make_writable(&entry.path())?;
            }
        }
        Ok(())
    }
    if !dir.try_exists()? {
        return Ok(());
    }
    make_writable(dir)
        .and_then(|()| fs::remove_dir_all(dir))
        .with_context(|| format!("cannot remove {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        remove_tree(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn a_folder_with_foreign_files_is_refused() {
        let dir = scratch("foreign");
        assert!(!is_complete(&dir, Kind::Test).unwrap());
        fs::write(dir.join("letter.txt"), "dear").unwrap();
        assert!(is_complete(&dir, Kind::Test).is_err());
        assert!(dir.join("letter.txt").exists());
        remove_tree(&dir).unwrap();
    }

    #[test]
    fn stores_of_another_kind_are_removed() {
        let dir = scratch("older");
        fs::write(
            dir.join(MANIFEST),
            json!({"format": ["test", FORMAT]}).to_string(),
        )
        .unwrap();
        assert!(is_complete(&dir, Kind::Test).unwrap());
        assert!(dir.exists());
        assert!(!is_complete(&dir, Kind::Bench).unwrap());
        assert!(!dir.exists());
    }
}
