//! The served store, and the real Nix that changes it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use crate::ask::{LOG_NAME, LOG_TEXT};
use crate::content::{Node, Version};
use crate::world::Facts;

/// A chroot store, which the server under test serves.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) root: PathBuf,
    /// Whether SQLite uses a WAL. With a rollback journal, writers lock readers out.
    pub(crate) has_wal: bool,
}

/// Returns a command for a Nix program, isolated from this machine's configuration and caches.
pub(crate) fn nix(program: &str, home: &Path) -> Command {
    let mut command = testkit::nix::nix(program, home);
    command.env("NIX_CONFIG", config(true));
    command
}

fn config(has_wal: bool) -> String {
    format!(
        "experimental-features = nix-command\nbuild-users-group =\nsandbox = false\n\
         substituters =\nfsync-metadata = false\nuse-sqlite-wal = {has_wal}\n"
    )
}

/// Runs a command that must succeed; returns its trimmed standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        bail!("{command:?}: {}\n{said}", done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

impl Store {
    pub(crate) fn new(root: PathBuf, has_wal: bool) -> Result<Self> {
        fs::create_dir_all(&root)?;
        let store = Self { root, has_wal };
        output(store.nix_store().arg("--init"))?;
        let log = store.root.join("nix/var/log/nix/drvs").join(&LOG_NAME[..2]);
        fs::create_dir_all(&log)?;
        fs::write(log.join(&LOG_NAME[2..]), LOG_TEXT)?;
        Ok(store)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("nix/var/nix/db/db.sqlite")
    }

    /// Returns where the files of a store path are in the file system.
    pub(crate) fn real(&self, store_path: &str) -> PathBuf {
        self.root.join(store_path.trim_start_matches('/'))
    }

    /// Returns a command for a Nix program, with this store's journal mode.
    pub(crate) fn nix(&self, program: &str) -> Command {
        let mut command = nix(program, &self.root);
        command.env("NIX_CONFIG", config(self.has_wal));
        command
    }

    pub(crate) fn nix_store(&self) -> Command {
        let mut command = self.nix("nix-store");
        command.arg("--store").arg(&self.root);
        command
    }

    /// Adds the trees `names` from `folder`; returns their store paths.
    pub(crate) fn add(&self, folder: &Path, names: &[String]) -> Result<Vec<String>> {
        let mut command = self.nix_store();
        command.arg("--add");
        command.args(names.iter().map(|name| folder.join(name)));
        Ok(output(&mut command)?.lines().map(str::to_owned).collect())
    }

    /// Writes the files and registers the paths, as at the end of a build.
    pub(crate) fn register(&self, paths: &[(&Facts, &Version)]) -> Result<()> {
        for (facts, version) in paths {
            self.put(facts, version)?;
        }
        self.load(paths)
    }

    /// Writes the files of a path.
    pub(crate) fn put(&self, facts: &Facts, version: &Version) -> Result<()> {
        let real = self.real(&facts.store_path);
        // An interrupted deletion may have left a part of an earlier tree.
        if real.symlink_metadata().is_ok() {
            remove(&real)?;
        }
        version.node.write_tree(&real)?;
        Ok(())
    }

    /// Registers paths whose files already exist.
    pub(crate) fn load(&self, paths: &[(&Facts, &Version)]) -> Result<()> {
        let mut rows = String::new();
        for (facts, version) in paths {
            rows.push_str(&format!(
                "{}\n{}\n{}\n\n{}\n",
                facts.store_path,
                version.nar_hash_hex,
                version.nar.len(),
                version.references.len()
            ));
            for reference in &version.references {
                rows.push_str(&format!("{reference}\n"));
            }
        }
        self.feed("--load-db", rows.as_bytes())
    }

    /// Runs `nix-store` with an argument and `input` as standard input.
    fn feed(&self, argument: &str, input: &[u8]) -> Result<()> {
        let mut child = self
            .nix_store()
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        stdin.write_all(input)?;
        drop(stdin);
        let done = child.wait_with_output()?;
        if !done.status.success() {
            bail!("{argument}: {}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(())
    }

    /// Exports paths with `nix-store --export`, as `nix-copy-closure` does.
    pub(crate) fn export(&self, paths: &[&str]) -> Result<Vec<u8>> {
        let mut command = self.nix_store();
        let done = command.arg("--export").args(paths).output()?;
        if !done.status.success() {
            bail!("--export: {}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(done.stdout)
    }

    pub(crate) fn import(&self, exported: &[u8]) -> Result<()> {
        self.feed("--import", exported)
    }

    /// Returns the valid ones of `paths`, according to Nix.
    pub(crate) fn valid(&self, paths: &[Arc<Facts>]) -> Result<BTreeSet<String>> {
        let mut command = self.nix_store();
        command.args(["--check-validity", "--print-invalid"]);
        command.args(paths.iter().map(|facts| &facts.store_path));
        let invalid = output(&mut command)?;
        let invalid: BTreeSet<&str> = invalid.lines().collect();
        let all = paths.iter().map(|facts| facts.store_path.clone());
        Ok(all
            .filter(|path| !invalid.contains(path.as_str()))
            .collect())
    }

    /// Makes a path a GC root.
    pub(crate) fn root_path(&self, store_path: &str) -> Result<()> {
        let folder = self.root.join("nix/var/nix/gcroots");
        let name = &store_path["/nix/store/".len()..];
        std::os::unix::fs::symlink(store_path, folder.join(name))?;
        Ok(())
    }
}

/// Removes a file or a tree.
pub(crate) fn remove(path: &Path) -> Result<()> {
    if path.symlink_metadata()?.is_dir() {
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Returns the location and content of a random file of a tree; `None` if it has no suitable file.
/// Skips empty files, which are all hard links to one inode after `--optimise`.
pub(crate) fn any_file<'a>(
    node: &'a Node,
    path: &Path,
    random: &mut testkit::random::SplitMix64,
) -> Option<(PathBuf, &'a [u8])> {
    match node {
        Node::File { content, .. } => (!content.is_empty()).then(|| (path.to_owned(), &**content)),
        Node::Link(_) => None,
        Node::Dir(entries) => {
            let start = random.index(entries.len());
            let mut entries = entries.iter().cycle().skip(start).take(entries.len());
            entries.find_map(|(name, node)| {
                any_file(node, &path.join(OsStr::from_bytes(name)), random)
            })
        }
    }
}
