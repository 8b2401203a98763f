//! Snapshots on a server, mounts of them, and a proxy that can be cut and slowed down.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::mount::UnmountFlags;
use samovar_nix::{Hash, HashPart, NarHash, SeekTable, StorePath};
use samovar_workspace::{Manifest, Packer, file_nar, read_tree};
use sha2::{Digest as _, Sha256};
use testkit::faults::{FaultProxy, Faults};
use testkit::process::Process;

use crate::support::samovar;
use crate::support_uploads::{MadePath, Running, Site};

/// Returns whether this machine can mount. Prints the reason if it cannot.
pub(crate) fn can_mount() -> bool {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    match opened {
        Ok(_) if is_root => true,
        Ok(_) => {
            println!("not tested: mounting needs root");
            false
        }
        Err(error) => {
            println!("not tested: /dev/fuse: {error}");
            false
        }
    }
}

/// Returns bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes a tree with all kinds of entries. Its NAR has about 9 MiB.
pub(crate) fn write_tree(root: &Path) {
    for dir in ["empty", "deep/er/still", "many", "private"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for number in 0..300 {
        fs::write(
            root.join(format!("many/file-{number}")),
            format!("{number}\n"),
        )
        .unwrap();
    }
    for number in 0..4_u64 {
        let content = noise(number, (2 << 20) + 77);
        fs::write(root.join(format!("deep/large-{number}")), content).unwrap();
    }
    let file = root.join("private/key");
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    File::open(&file).unwrap().set_modified(time).unwrap();
    let file = root.join("run");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.join("deep/er/still/nothing"), "").unwrap();
    fs::write(root.join("white space\n"), "x").unwrap();
    symlink("deep/large-0", root.join("link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::set_permissions(root.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Path, mode, seconds of modification, and contents or the number of an error.
pub(crate) type Listed = (PathBuf, u32, i64, Result<Vec<u8>, i32>);

/// Returns all entries of a tree, sorted.
pub(crate) fn listed(root: &Path) -> Vec<Listed> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = root.join(&relative);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                pending.push(relative.join(entry.unwrap().file_name()));
            }
            Ok(Vec::new())
        } else if metadata.is_symlink() {
            Ok(fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes())
        } else {
            fs::read(&path).map_err(|error| error.raw_os_error().unwrap())
        };
        // The modes of links, and their times, are not those of the tree.
        let mtime = if metadata.is_symlink() {
            0
        } else {
            metadata.mtime()
        };
        found.push((relative, metadata.mode(), mtime, content));
    }
    found.sort();
    found
}

/// A tree and its manifest as uploaded paths.
pub(crate) struct Snapshot {
    pub(crate) tree: MadePath,
    pub(crate) manifest: MadePath,
    pub(crate) text: String,
}

impl Snapshot {
    /// Packs a directory. `compression`: `none`, `zstd` with a seek table, or the name of a program
    /// that compresses.
    pub(crate) fn of(root: &Path, compression: &'static str) -> Self {
        let (scanned, nar_hash) = read_tree(root, None, true, 1).unwrap();
        let nar_hash = nar_hash.unwrap();
        let scanned = Arc::new(scanned);
        let mut nar = Vec::new();
        let mut packer = Packer::start(Arc::clone(&scanned), 1).unwrap();
        packer.read_to_end(&mut nar).unwrap();
        let mut tree = MadePath::new("app");
        tree.store_path = address(&nar, &[], "app");
        tree.nar = nar.clone();
        tree = match compression {
            "none" => MadePath { file: nar, ..tree },
            "zstd" => MadePath {
                file: framed(&nar),
                compression,
                ..tree
            },
            _ => tree.compressed(compression),
        };
        let manifest = Manifest {
            tree: StorePath::from_base_name(&tree.store_path[11..]).unwrap(),
            nar_hash,
            entries: scanned.entries.clone(),
        };
        Self::with_text(tree, manifest.text())
    }

    /// Returns the snapshot with another text of its manifest.
    pub(crate) fn with_text(tree: MadePath, text: String) -> Self {
        let mut manifest = MadePath::new("app.manifest");
        manifest.nar = file_nar(text.as_bytes());
        manifest.file = manifest.nar.clone();
        manifest.store_path = address(&manifest.nar, &[&tree.store_path], "app.manifest");
        Self {
            manifest: manifest.referring_to(&tree.store_path),
            tree,
            text,
        }
    }

    /// Uploads both paths, and pins the manifest as the ref `app`.
    #[track_caller]
    pub(crate) fn publish(&self, server: &Running, token: &str) {
        for path in [&self.tree, &self.manifest] {
            let file = server.put(token, &path.file_target(), &path.file);
            assert_eq!(file.status, 200, "{}", file.text());
            let hash = NarHash::from_bytes(Sha256::digest(&path.nar).into()).to_hash();
            let narinfo = path.narinfo() + &format!("CA: fixed:r:{hash}\n");
            let narinfo = server.put(token, &path.target(), narinfo);
            assert_eq!(narinfo.status, 200, "{}", narinfo.text());
        }
        let pinned = server.put(token, "/upload/pin/app", &self.manifest.store_path[11..]);
        assert_eq!(pinned.status, 200, "{}", pinned.text());
    }
}

/// Returns the store path of a NAR with these references.
pub(crate) fn address(nar: &[u8], references: &[&str], name: &str) -> String {
    let mut kind = "source".to_owned();
    for reference in references {
        kind = format!("{kind}:{reference}");
    }
    let hash = Hash::sha256(&Sha256::digest(nar).into()).base16();
    let digest = Sha256::digest(format!("{kind}:sha256:{hash}:/nix/store:{name}"));
    let mut folded = [0_u8; 20];
    for (at, byte) in digest.iter().enumerate() {
        folded[at % 20] ^= byte;
    }
    format!("/nix/store/{}-{name}", HashPart::from_bytes(folded))
}

/// Compresses in frames of 1 MiB with a seek table.
pub(crate) fn framed(nar: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut table = SeekTable::default();
    for content in nar.chunks(1 << 20) {
        let frame = zstd::bulk::compress(content, 1).unwrap();
        table.add(frame.len(), content.len());
        file.extend_from_slice(&frame);
    }
    table.write(&mut file);
    file
}

/// A server with a snapshot as the ref `app`, and a client's directories.
pub(crate) struct Fixture {
    pub(crate) site: Site,
    pub(crate) server: Running,
    pub(crate) token: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) dir: tempfile::TempDir,
}

impl Fixture {
    /// Publishes the tree of [`write_tree`].
    pub(crate) fn new(compression: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        write_tree(&tree);
        let snapshot = Snapshot::of(&tree, compression);
        Self::with(dir, snapshot)
    }

    pub(crate) fn with(dir: tempfile::TempDir, snapshot: Snapshot) -> Self {
        let site = Site::new();
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin"]);
        snapshot.publish(&server, &token);
        Self {
            site,
            server,
            token,
            snapshot,
            dir,
        }
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// Returns the command that mounts a source of the cache at this URL on the directory `name`.
    pub(crate) fn command(&self, url: &str, source: &str, name: &str) -> Command {
        let mut command = samovar();
        command.args(["mount", &format!("{url}#{source}")]);
        command.arg(self.dir.path().join(name));
        command.env("SAMOVAR_TOKEN", &self.token);
        command.env("SAMOVAR_CACHE_DIR", self.cache());
        command
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Mounts the ref `app` from the server.
    pub(crate) fn mount(&self, name: &str, options: &[&str]) -> Mount {
        self.mount_from(&self.server.url(), name, options)
    }

    pub(crate) fn mount_from(&self, url: &str, name: &str, options: &[&str]) -> Mount {
        let mut command = self.command(url, "app", name);
        command.args(options);
        Mount::start(&mut command, self.dir.path().join(name))
    }

    /// Overwrites bytes in the middle of the file that the server has for the tree.
    pub(crate) fn damage(&self) {
        let file = self.site.storage().join(self.snapshot.tree.url());
        let stored = OpenOptions::new().write(true).open(&file).unwrap();
        let at = stored.metadata().unwrap().len() / 2;
        stored.write_all_at(b"DAMAGED!", at).unwrap();
    }

    /// Waits until the whole snapshot is on the client, verified.
    pub(crate) fn wait_until_whole(&self) {
        let name = &self.snapshot.manifest.store_path[11..];
        let marks = self.cache().join("snapshots").join(name).join("marks");
        testkit::eventually("the snapshot is here and verified", || {
            fs::read(&marks).is_ok_and(|marks| marks.get(56) == Some(&2))
        });
    }
}

/// A process that has mounted something.
pub(crate) struct Mount {
    pub(crate) process: Process,
    pub(crate) dir: PathBuf,
    /// The line that reports the mount.
    pub(crate) line: String,
}

impl Mount {
    #[track_caller]
    pub(crate) fn start(command: &mut Command, dir: PathBuf) -> Self {
        let process = Process::try_spawn(command).unwrap();
        let line = process.wait_for("mounted ");
        Self { process, dir, line }
    }

    /// Returns the contents of a file, or the number of the error.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, i32> {
        fs::read(self.dir.join(path)).map_err(|error| error.raw_os_error().unwrap())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.dir);
    }
}

/// Unmounts everything from a directory, also if it is in use.
pub(crate) fn unmount(dir: &Path) {
    while rustix::mount::unmount(dir, UnmountFlags::DETACH).is_ok() {}
}

/// A TCP proxy that can be cut, and that forwards a limited number of bytes.
pub(crate) struct Line(FaultProxy);

impl Line {
    /// `left`: number of bytes of responses that are forwarded before [`release`](Self::release).
    pub(crate) fn to(server: SocketAddr, left: usize) -> Self {
        let line = Self(FaultProxy::start(server));
        line.limit(left);
        line
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connection_count(&self) -> u64 {
        self.0.connection_count()
    }

    /// Returns the number of bytes of responses forwarded so far.
    pub(crate) fn forwarded(&self) -> usize {
        usize::try_from(self.0.forwarded()[1]).unwrap()
    }

    /// Forwards all further bytes.
    pub(crate) fn release(&self) {
        self.0.set(Faults::NONE);
    }

    /// Forwards this number of further bytes of requests, and all responses.
    pub(crate) fn limit_requests(&self, left: usize) {
        self.0.set(Faults::hold_requests(left as u64).in_total());
    }

    /// Forwards this number of further bytes of responses, and all requests.
    pub(crate) fn limit(&self, left: usize) {
        self.0.set(Faults::hold_responses(left as u64).in_total());
    }

    /// Closes all connections, and accepts new ones only for a server.
    pub(crate) fn connect(&self, server: Option<SocketAddr>) {
        match server {
            Some(server) => {
                self.0.redirect(server);
                self.0.set(Faults::NONE);
            }
            None => {
                self.0.set(Faults::refuse());
                self.0.disconnect();
            }
        }
    }
}
