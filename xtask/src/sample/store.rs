//! A store in a separate folder, filled by the real Nix.
//!
//! A chroot store in Nix's terms: with `--store DIR`, all names stay `/nix/store/…`, while files,
//! database and logs are below `DIR/nix`. So it requires neither `/nix` nor root.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use testkit::nar::{write_bytes, write_u64};

use super::random::Node;
use crate::command::{feed, output};

/// The store directory in the names of all paths, wherever their files are.
pub(crate) const STORE_DIR: &str = "/nix/store";

/// A chroot store below `root`, and a folder for Nix's other files.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    scratch: PathBuf,
}

/// A path to register, with its content and references.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) path: String,
    pub(crate) node: Node,
    pub(crate) references: Vec<String>,
    pub(crate) deriver: String,
}

/// A derivation, as the Nix evaluator reports it.
#[derive(Debug, Clone)]
pub(crate) struct Derivation {
    /// Path of the `.drv` file.
    pub(crate) drv: String,
    /// Store path of each output, by the name of the output.
    pub(crate) outputs: BTreeMap<String, String>,
}

impl Store {
    /// Creates an empty store below `root`, which must exist.
    pub(crate) fn new(root: &Path) -> Result<Self> {
        let root = root.canonicalize()?;
        let scratch = root.join("scratch");
        fs::create_dir(&scratch)?;
        Ok(Self { root, scratch })
    }

    /// Returns where the files of a store path are in the file system.
    pub(crate) fn real(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Removes the folder with Nix's other files.
    pub(crate) fn finish(self) -> Result<()> {
        Ok(fs::remove_dir_all(&self.scratch)?)
    }

    /// Returns a Nix command on this store, isolated from the configuration of machine and user.
    pub(crate) fn command(&self, program: &str) -> Command {
        let program = crate::command::find(program).unwrap_or(program.into());
        let mut command = testkit::nix::nix(&program.to_string_lossy(), &self.scratch);
        command.current_dir(&self.scratch);
        if program.ends_with("nix") {
            command.args(["--extra-experimental-features", "nix-command"]);
        }
        command.arg("--store").arg(&self.root);
        // Nix's build users may not exist on this machine. The store need not survive a power
        // failure, so Nix does not sync after each path.
        command.args([
            "--option",
            "build-users-group",
            "",
            "--option",
            "fsync-metadata",
            "false",
        ]);
        command.args(["--option", "substitute", "false"]);
        command
    }

    /// Returns a command of SQLite's shell on the store's database.
    pub(crate) fn database_shell(&self) -> Result<Command> {
        let program = crate::command::find("sqlite3").context("sqlite3 is not installed")?;
        let mut command = Command::new(program);
        command.arg(self.root.join("nix/var/nix/db/db.sqlite"));
        Ok(command)
    }

    /// Adds each tree under its name as a source: content-addressed, without references.
    pub(crate) fn add(&self, sources: &[(&str, Node)]) -> Result<Vec<String>> {
        let folder = self.scratch.join("add");
        fs::create_dir(&folder)?;
        for (name, node) in sources {
            node.write_tree(&folder.join(name))
                .with_context(|| format!("cannot write {name}"))?;
        }
        let files = sources.iter().map(|(name, _)| folder.join(name));
        let added = output(self.command("nix-store").arg("--add").args(files));
        fs::remove_dir_all(&folder)?;
        Ok(added?.lines().map(str::to_owned).collect())
    }

    /// Adds a file content-addressed by its flat hash, like a download.
    pub(crate) fn add_fixed(&self, name: &str, node: &Node) -> Result<String> {
        let file = self.scratch.join(name);
        node.write_tree(&file)?;
        output(
            self.command("nix-store")
                .args(["--add-fixed", "sha256"])
                .arg(file),
        )
    }

    /// Evaluates `expression`, a list of derivations, and writes their `.drv` files.
    pub(crate) fn instantiate(
        &self,
        features: Features,
        expression: &str,
    ) -> Result<Vec<Derivation>> {
        let described = format!(
            "map (d: {{ drv = d.drvPath; outputs = builtins.listToAttrs (map (name: {{ inherit \
             name; value = d.${{name}}.outPath; }}) (d.outputs or [ \"out\" ])); }}) ({expression})"
        );
        // The expression is in a file, because thousands of packages would exceed the maximum
        // length of an argument.
        let file = self.scratch.join("expression.nix");
        fs::write(&file, described)?;
        let json = output(
            self.command("nix-instantiate")
                .args(features.arguments())
                .args(["--eval", "--strict", "--json", "--read-write-mode"])
                .arg(&file),
        )?;
        let list: Vec<Value> = serde_json::from_str(&json).context("not a list of derivations")?;
        list.iter()
            .map(derivation)
            .collect::<Option<_>>()
            .context("not a derivation")
    }

    /// Evaluates `expression` to a string; writes the store paths that it depends on.
    pub(crate) fn evaluate(&self, expression: &str) -> Result<String> {
        let json = output(self.command("nix-instantiate").args([
            "--eval",
            "--json",
            "--read-write-mode",
            "--expr",
            expression,
        ]))?;
        serde_json::from_str(&json).context("not a string")
    }

    /// Registers `paths`, each after its references. Nix itself computes hashes and sizes from the
    /// NARs.
    pub(crate) fn import(&self, paths: &[Import]) -> Result<()> {
        feed(self.command("nix-store").arg("--import"), |out| {
            paths.iter().try_for_each(|path| path.write(out))?;
            write_u64(out, 0)
        })
        .map(drop)
    }

    /// Builds the derivation `drv` in Nix's sandbox with this machine's programs; returns the path
    /// of its first output.
    pub(crate) fn build(&self, features: Features, drv: &str) -> Result<String> {
        let built = output(
            self.command("nix-store")
                // Nix must not fall back to builds without a sandbox, whose builder would write to
                // the machine's `/nix/store`.
                .args([
                    "--option",
                    "sandbox",
                    "true",
                    "--option",
                    "sandbox-fallback",
                    "false",
                ])
                .args(["--option", "sandbox-paths", "/bin /usr /lib /lib64?"])
                .args(features.arguments())
                .args(["--realise", drv]),
        )?;
        Ok(built
            .lines()
            .next()
            .context("a build prints its outputs")?
            .to_owned())
    }

    /// Returns all valid paths, sorted.
    pub(crate) fn valid_paths(&self) -> Result<Vec<String>> {
        let listed = output(self.command("nix").args(["path-info", "--all"]))?;
        let mut paths: Vec<String> = listed.lines().map(str::to_owned).collect();
        paths.sort();
        Ok(paths)
    }

    /// Returns the closure of `path`.
    pub(crate) fn closure(&self, path: &str) -> Result<Vec<String>> {
        let listed = output(
            self.command("nix-store")
                .args(["--query", "--requisites", path]),
        )?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Signs `path` with a secret key; the database stores the signature.
    pub(crate) fn sign(&self, path: &str, secret_key: &str) -> Result<()> {
        let file = self.scratch.join("secret-key");
        fs::write(&file, secret_key)?;
        output(
            self.command("nix")
                .args(["store", "sign", "--key-file"])
                .arg(&file)
                .arg(path),
        )?;
        Ok(())
    }

    /// Generates a secret key with this name.
    pub(crate) fn generate_key(&self, name: &str) -> Result<String> {
        let [secret, public] =
            ["generated-secret", "generated-public"].map(|file| self.scratch.join(file));
        output(
            self.command("nix-store")
                .args(["--generate-binary-cache-key", name])
                .args([&secret, &public]),
        )?;
        Ok(fs::read_to_string(secret)?)
    }

    /// Writes a build log for `drv`; the caller compresses.
    pub(crate) fn write_log(
        &self,
        drv: &str,
        (is_flat, is_bzip2): LogPlace,
        bytes: &[u8],
    ) -> Result<()> {
        let name = drv.trim_start_matches(STORE_DIR).trim_start_matches('/');
        let logs = self.root.join("nix/var/log/nix/drvs");
        let file = if is_flat {
            logs.join(name)
        } else {
            let (folder, rest) = name.split_at(2);
            logs.join(folder).join(rest)
        };
        fs::create_dir_all(file.parent().context("a log has a folder")?)?;
        let suffix = if is_bzip2 { ".bz2" } else { "" };
        Ok(fs::write(format!("{}{suffix}", file.display()), bytes)?)
    }
}

/// Experimental features that a command may use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Features {
    /// No experimental features.
    Stable,
    /// Content-addressed derivations. Nix then writes a realisation for *every* build, so only
    /// derivations that need the feature use it.
    ContentAddressed,
}

impl Features {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Stable => &[],
            Self::ContentAddressed => &["--option", "experimental-features", "ca-derivations"],
        }
    }
}

/// The place of a build log: whether it is in the log folder itself, and whether it is compressed
/// with bzip2.
pub(crate) type LogPlace = (bool, bool);

fn derivation(value: &Value) -> Option<Derivation> {
    let outputs = value.get("outputs")?.as_object()?;
    let outputs = outputs
        .iter()
        .map(|(name, path)| Some((name.clone(), path.as_str()?.to_owned())));
    Some(Derivation {
        drv: value.get("drv")?.as_str()?.to_owned(),
        outputs: outputs.collect::<Option<_>>()?,
    })
}

impl Import {
    /// Writes the path in Nix's export format: libstore/export-import.cc of Nix 2.8.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        const MAGIC: u64 = 0x4558_494e;
        write_u64(out, 1)?;
        self.node.write_nar(out)?;
        write_u64(out, MAGIC)?;
        write_bytes(out, self.path.as_bytes())?;
        write_u64(out, self.references.len() as u64)?;
        for reference in &self.references {
            write_bytes(out, reference.as_bytes())?;
        }
        write_bytes(out, self.deriver.as_bytes())?;
        // Zero means that no signature follows. Before Nix 2.0, the format had signatures.
        write_u64(out, 0)
    }
}
