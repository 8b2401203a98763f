//! `samovar mount --store` shows the store of any Nix cache: right contents or an error, and never
//! an endless wait.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it has not tested"
)]

mod support;
mod support_files;
mod support_mount;
mod support_uploads;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::mount::{MountFlags, mount};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{SecretKey, StoreDir};
use support::samovar;
use support_files::{Files, Rule, no_rule};
use support_mount::{Line, Mount, can_mount, noise, unmount};
use support_uploads::{MadePath, Site, hash};
use testkit::eventually;
use testkit::nar::Node;
use testkit::nix::{Nix, key_pair, local};
use testkit::process::{finish, output};

const EIO: i32 = 5;
const ENOENT: i32 = 2;

/// Length of a file of several blocks.
const LARGE: usize = (1 << 20) + 77;

/// A plain Nix cache: files of a directory. And the directories of a client.
struct Plain {
    dir: tempfile::TempDir,
    /// A program that reads from a library by a relative path, and links to it.
    tool: MadePath,
    library: MadePath,
    /// A path that is a file.
    file: MadePath,
    /// A path that is a link to the library.
    link: MadePath,
}

impl Plain {
    fn new() -> Self {
        let library = Node::dir([
            ("empty", Node::file("")),
            ("large", Node::file(noise(1, LARGE))),
            ("text", Node::file("from the library\n")),
        ]);
        let library = made("library", &library).compressed("xz");
        let name = &library.store_path[11..];
        let script = format!("#!/bin/sh\ncd \"$(dirname \"$0\")\"\ncat ../../{name}/text\n");
        let tool = Node::dir([
            ("bin", Node::dir([("run", Node::program(script))])),
            ("library", Node::link(format!("../{name}"))),
        ]);
        let plain = Self {
            dir: tempfile::tempdir().unwrap(),
            tool: made("tool", &tool).compressed("zstd"),
            file: made("file", &Node::program("#!/bin/sh\necho a file\n")).compressed("xz"),
            link: made("link", &Node::<Vec<u8>>::link(name)),
            library,
        };
        fs::create_dir_all(plain.cache().join("nar")).unwrap();
        fs::write(
            plain.cache().join("nix-cache-info"),
            "StoreDir: /nix/store\n",
        )
        .unwrap();
        for path in plain.paths() {
            plain.add(path, &path.narinfo());
        }
        plain
    }

    fn paths(&self) -> [&MadePath; 4] {
        [&self.tool, &self.library, &self.file, &self.link]
    }

    fn add(&self, path: &MadePath, narinfo: &str) {
        fs::write(self.cache().join(path.url()), &path.file).unwrap();
        let file = format!("{}.narinfo", path.hash_part());
        fs::write(self.cache().join(file), narinfo).unwrap();
    }

    /// Adds a path with a signature.
    fn sign(&self, path: &MadePath, secret: &SecretKey) {
        let dir = StoreDir::new("/nix/store").unwrap();
        let info = NarInfo::parse(&dir, path.narinfo().as_bytes()).unwrap();
        let fingerprint = info.fingerprint(&dir);
        let signature = secret.sign(fingerprint.as_bytes());
        self.add(path, &format!("{}Sig: {signature}\n", path.narinfo()));
    }

    /// Directory of the cache's files.
    fn cache(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    fn serve(&self, rule: Rule) -> (String, Arc<Files>) {
        let (address, files) = Files::serve(&self.cache(), rule);
        (format!("http://{address}"), files)
    }

    fn command(&self, url: &str, options: &[&str]) -> Command {
        command(self.dir.path(), url, options)
    }

    fn mount(&self, url: &str, options: &[&str]) -> Mount {
        Mount::start(&mut self.command(url, options), self.dir.path().join("mnt"))
    }
}

/// Returns the command that mounts the store of a cache on the directory `mnt` in `dir`.
fn command(dir: &Path, url: &str, options: &[&str]) -> Command {
    let mut command = samovar();
    command.args(["mount", "--store", url]).args(options);
    command.arg(dir.join("mnt"));
    command.env("SAMOVAR_CACHE_DIR", dir.join("cache"));
    command
}

fn made(name: &str, node: &Node) -> MadePath {
    let nar = node.nar();
    MadePath {
        file: nar.clone(),
        nar,
        ..MadePath::new(name)
    }
}

fn base_name(path: &MadePath) -> &str {
    &path.store_path[11..]
}

/// Returns the path of a store path's entry below the mount.
fn below(path: &MadePath, entry: &str) -> String {
    format!("{}/{entry}", base_name(path))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn looked_up(mount: &Mount, path: &MadePath) -> Result<u64, i32> {
    let metadata = fs::symlink_metadata(mount.dir.join(base_name(path)));
    let metadata = metadata.map_err(|error| error.raw_os_error().unwrap())?;
    Ok(metadata.ino())
}

#[test]
fn the_paths_of_a_plain_cache_are_here() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let (url, files) = plain.serve(no_rule());
    let mut mount = plain.mount(&url, &[]);
    assert!(
        mount.line.contains(&format!("mounted {url} on ")),
        "{}",
        mount.line
    );
    assert_eq!(names(&mount.dir), [""; 0]);
    // A program finds another store path, by a relative path and by a link.
    let run = mount.dir.join(below(&plain.tool, "bin/run"));
    assert_eq!(output(&mut Command::new(run)), "from the library\n");
    let large = noise(1, LARGE);
    assert_eq!(
        mount.read(&below(&plain.tool, "library/large")),
        Ok(large.clone())
    );
    assert_eq!(
        mount.read(&below(&plain.library, "large")),
        Ok(large.clone())
    );
    assert_eq!(mount.read(&below(&plain.link, "large")), Ok(large));
    let file = mount.dir.join(base_name(&plain.file));
    assert_eq!(output(&mut Command::new(&file)), "a file\n");
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.mode(), metadata.mtime()), (0o100_555, 1));
    let entries = names(&mount.dir.join(base_name(&plain.library)));
    assert_eq!(entries, ["empty", "large", "text"]);
    // What is not there.
    let missing = MadePath::new("missing");
    let other = made("other", &Node::file(""));
    plain.add(&other, &other.narinfo());
    let other_name = format!("{}-another", other.hash_part());
    for name in [base_name(&missing), &other_name, "bin", ".Trash"] {
        assert_eq!(mount.read(name), Err(ENOENT), "{name}");
    }
    assert_eq!(mount.read(&below(&plain.tool, "bin/no")), Err(ENOENT));
    let error = fs::write(mount.dir.join("new"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "read-only: {error}");
    // The kernel may list the directory again after a second.
    let mut expected = plain.paths().map(|path| base_name(path).to_owned());
    expected.sort();
    eventually("the paths that are open are listed", || {
        fs::metadata(&mount.dir).unwrap();
        names(&mount.dir) == expected
    });
    // Each narinfo and each NAR was requested once, and that of an absent path, too.
    let asked = files.asked();
    for path in plain.paths() {
        for target in [path.target(), path.file_target()] {
            let count = asked
                .iter()
                .filter(|line| **line == format!("GET {target}"));
            assert_eq!(count.count(), 1, "{target}");
        }
    }
    assert_eq!(mount.read(base_name(&missing)), Err(ENOENT));
    let line = format!("GET {}", missing.target());
    assert_eq!(asked.iter().filter(|asked| **asked == line).count(), 1);
    assert_eq!(files.asked().len(), asked.len());
    let again = output(&mut plain.command(&url, &[]));
    assert!(again.contains(" is mounted on "), "{again}");
    mount.process.signal("TERM");
    assert_eq!(mount.process.wait(), Some(0));
    assert_eq!(names(&mount.dir), [""; 0]);
}

#[test]
fn damaged_and_unsigned_paths_give_errors() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let mut other = plain.library.clone();
    other.nar[200] ^= 1;
    other = other.compressed("xz");
    // Another NAR than that of the narinfo, a file that is no xz file, and one that is cut off.
    let url_of = |path: &MadePath| plain.cache().join(path.url());
    fs::write(url_of(&plain.library), &other.file).unwrap();
    fs::write(url_of(&plain.tool), "no NAR").unwrap();
    let half = &plain.file.file[..plain.file.file.len() / 2];
    fs::write(url_of(&plain.file), half).unwrap();
    let (url, _) = plain.serve(no_rule());
    let mount = plain.mount(&url, &[]);
    for path in [&plain.library, &plain.tool, &plain.file] {
        assert_eq!(looked_up(&mount, path), Err(EIO), "{}", path.store_path);
        let line = mount.process.wait_for(base_name(path));
        assert!(line.contains("damaged on the server"), "{line}");
    }
    assert!(looked_up(&mount, &plain.link).is_ok());
    drop(mount);
    // With keys, also what is on this machine needs a signature of the same contents.
    let (secret, keys) = key_pair(plain.dir.path(), "any-1");
    let secret = SecretKey::parse(&fs::read_to_string(secret).unwrap()).unwrap();
    let other = made("link", &Node::<Vec<u8>>::link("/elsewhere"));
    plain.sign(&other, &secret);
    let mount = plain.mount(&url, &["--trusted-public-keys", &keys]);
    assert_eq!(looked_up(&mount, &plain.library), Err(EIO));
    let line = mount.process.wait_for(base_name(&plain.library));
    assert!(line.contains("not signed by a key"), "{line}");
    let target = fs::read_link(mount.dir.join(base_name(&plain.link))).unwrap();
    assert_eq!(target.to_str(), Some("/elsewhere"));
}

/// Returns a rule that holds the responses back whose targets contain a text, and a function that
/// releases them.
fn held(part: String) -> (Rule, impl Fn()) {
    let released = Arc::new((Mutex::new(false), Condvar::new()));
    let shared = Arc::clone(&released);
    let rule: Rule = Box::new(move |_, target, _| {
        if target.contains(&part) {
            let guard = shared.0.lock().unwrap();
            drop(shared.1.wait_while(guard, |released| !*released).unwrap());
        }
        None
    });
    let release = move || {
        *released.0.lock().unwrap() = true;
        released.1.notify_all();
    };
    (rule, release)
}

#[test]
fn a_lookup_does_not_wait_for_others() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let (rule, release) = held(plain.library.url());
    let (url, files) = plain.serve(rule);
    let mount = plain.mount(&url, &["--timeout", "600"]);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| looked_up(&mount, &plain.library)))
            .collect();
        let request = format!("GET {}", plain.library.file_target());
        eventually("the download has begun", || {
            files.asked().contains(&request)
        });
        assert!(looked_up(&mount, &plain.file).is_ok());
        let text = mount.read(&below(&plain.tool, "bin/run")).unwrap();
        assert!(text.starts_with(b"#!/bin/sh"));
        release();
        let inodes: Vec<_> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(inodes[0].is_ok());
        assert!(inodes.iter().all(|inode| *inode == inodes[0]));
    });
    let target = plain.library.file_target();
    let count = files
        .asked()
        .iter()
        .filter(|line| line.ends_with(&target))
        .count();
    assert_eq!(count, 1);
}

#[test]
fn a_signal_ends_a_mount_with_a_waiting_lookup() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let (rule, release) = held(plain.library.url());
    let (url, files) = plain.serve(rule);
    let mut mount = plain.mount(&url, &["--timeout", "600"]);
    let path = mount.dir.join(base_name(&plain.library));
    let lookup = std::thread::spawn(move || fs::metadata(path).is_err());
    let request = format!("GET {}", plain.library.file_target());
    eventually("the download has begun", || {
        files.asked().contains(&request)
    });
    mount.process.signal("TERM");
    assert_eq!(mount.process.wait(), Some(0));
    assert!(lookup.join().unwrap());
    release();
}

#[test]
fn lookups_fail_while_the_server_is_away_and_succeed_when_it_is_back() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new();
    let mut server = site.start();
    let token = site.token(&["--rights", "read,push"]);
    let plain = Plain::new();
    for path in plain.paths() {
        for (target, body) in [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ] {
            let put = server.put(&token, &target, body);
            assert_eq!(put.status, 200, "{}", put.text());
        }
    }
    let line = Line::to(server.address, usize::MAX);
    let keys = site.public_key.clone();
    let options = ["--timeout", "1", "--trusted-public-keys", &keys];
    let mount = Mount::start(
        &mut command(dir.path(), &line.url(), &options),
        dir.path().join("mnt"),
    );
    let inode = looked_up(&mount, &plain.library).unwrap();
    line.connect(None);
    server.process.signal("KILL");
    server.process.wait();
    let start = Instant::now();
    assert_eq!(looked_up(&mount, &plain.tool), Err(EIO));
    mount.process.wait_for("I/O errors");
    // The names of others are neither there nor absent.
    assert_eq!(looked_up(&mount, &MadePath::new("missing")), Err(EIO));
    assert!(start.elapsed().as_secs() < 30);
    // What is open remains readable.
    let text = mount.read(&below(&plain.library, "text"));
    assert_eq!(text, Ok(b"from the library\n".to_vec()));
    server = site.start();
    line.connect(Some(server.address));
    eventually("a new path is there", || {
        looked_up(&mount, &plain.tool).is_ok()
    });
    mount.process.wait_for("reachable again");
    assert_eq!(looked_up(&mount, &plain.library), Ok(inode));
    assert_eq!(looked_up(&mount, &MadePath::new("missing")), Err(ENOENT));
    drop(server);
}

#[test]
fn offline_shows_what_was_fetched() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let (url, files) = plain.serve(no_rule());
    let mount = plain.mount(&url, &[]);
    for path in [&plain.tool, &plain.library, &plain.file] {
        assert!(looked_up(&mount, path).is_ok());
    }
    drop(mount);
    let asked = files.asked();
    let text = output(&mut plain.command(&url, &["--offline", "--background"]));
    let mount_dir = plain.dir.path().join("mnt");
    assert!(text.starts_with("mounted "), "{text}");
    let run = mount_dir.join(below(&plain.tool, "bin/run"));
    assert_eq!(output(&mut Command::new(run)), "from the library\n");
    let file = mount_dir.join(base_name(&plain.file));
    assert_eq!(output(&mut Command::new(file)), "a file\n");
    assert!(!mount_dir.join(base_name(&plain.link)).exists());
    unmount(&mount_dir);
    assert_eq!(files.asked(), asked);
    // No folder was made for a path that is not here.
    let folders = names(&plain.dir.path().join("cache/snapshots"));
    assert!(!folders.contains(&base_name(&plain.link).to_owned()));
}

/// An overlay on a mounted store. It is unmounted when it is dropped.
struct Overlay {
    upper: PathBuf,
    merged: PathBuf,
}

impl Overlay {
    /// Returns `None` if this machine has no overlays.
    fn on(store: &Mount, dir: &Path) -> Option<Self> {
        let [upper, work, merged] = ["upper", "work", "merged"].map(|name| dir.join(name));
        for dir in [&upper, &work, &merged] {
            fs::create_dir(dir).unwrap();
        }
        let (lower, top, work) = (store.dir.display(), upper.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={top},workdir={work}");
        let options = CString::new(options).unwrap();
        let flags = MountFlags::empty();
        if let Err(error) = mount("overlay", &merged, "overlay", flags, &*options) {
            eprintln!("not tested: overlays: {error}");
            return None;
        }
        Some(Self { upper, merged })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.merged);
    }
}

#[test]
fn an_overlay_works_on_the_store() {
    if !can_mount() {
        return;
    }
    let plain = Plain::new();
    let (url, _) = plain.serve(no_rule());
    let store = plain.mount(&url, &[]);
    let Some(overlay) = Overlay::on(&store, plain.dir.path()) else {
        return;
    };
    let run = overlay.merged.join(below(&plain.tool, "bin/run"));
    assert_eq!(output(&mut Command::new(&run)), "from the library\n");
    let inode = fs::metadata(&run).unwrap().ino();
    // A new path beside those of the cache, which uses them.
    let new = overlay.merged.join("c0000000000000000000000000000000-new");
    fs::create_dir(&new).unwrap();
    symlink(&run, new.join("run")).unwrap();
    assert_eq!(fs::read(new.join("run")).unwrap(), fs::read(&run).unwrap());
    let missing = overlay.merged.join(base_name(&MadePath::new("missing")));
    let error = fs::read(missing).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOENT));
    assert_eq!(fs::metadata(&run).unwrap().ino(), inode);
    assert_eq!(
        names(&overlay.upper),
        ["c0000000000000000000000000000000-new"]
    );
}

#[test]
fn nix_uses_the_store_below_a_local_overlay_store() {
    if !can_mount() {
        return;
    }
    // The installed Nix has no local-overlay-store.
    for newer in Nix::newer() {
        let plain = Plain::new();
        let (url, _) = plain.serve(no_rule());
        let store = plain.mount(&url, &[]);
        let dir = plain.dir.path();
        let Some(overlay) = Overlay::on(&store, dir) else {
            return;
        };
        let nix = |program: &str| {
            let mut command = newer.command(program, dir);
            let features = "nix-command local-overlay-store read-only-local-store";
            let config = format!("experimental-features = {features}\nbuild-users-group =\n");
            command.env("NIX_CONFIG", config);
            command
        };
        let database = dir.join("database");
        let mut registration = String::new();
        for path in [&plain.tool, &plain.library] {
            let (store_path, hash) = (&path.store_path, hash(&path.nar));
            let len = path.nar.len();
            registration += &format!("{store_path}\nsha256:{hash}\n{len}\n\n0\n");
        }
        fs::write(dir.join("registration"), registration).unwrap();
        let mut load = nix("nix-store");
        load.stdin(File::open(dir.join("registration")).unwrap());
        output(load.args(["--load-db", "--store", &local(&database)]));
        let (lower, database) = (store.dir.display(), database.display());
        let lower = format!("local?real={lower}&state={database}/nix/var/nix&read-only=true");
        let lower = utf8_percent_encode(&lower, NON_ALPHANUMERIC);
        let (root, merged) = (dir.join("root"), overlay.merged.display());
        let uri = format!(
            "local-overlay://?root={}&real={merged}&upper-layer={}&lower-store={lower}",
            root.display(),
            overlay.upper.display(),
        );
        let mut verify = nix("nix");
        verify.args(["store", "verify", "--no-trust", "--store", &uri]);
        output(verify.args([&plain.tool.store_path, &plain.library.store_path]));
        fs::write(dir.join("added"), "added").unwrap();
        let mut add = nix("nix");
        add.args(["store", "add", "--store", &uri]);
        let added = output(add.arg(dir.join("added")));
        let added = added.trim().rsplit('/').next().unwrap();
        assert_eq!(fs::read(overlay.upper.join(added)).unwrap(), b"added");
    }
}

#[test]
fn wrong_combinations_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |command: &mut Command, text: &str| {
        let output = finish(command);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(text), "{errors}");
    };
    let url = "http://127.0.0.1:9";
    refused(&mut command(dir.path(), url, &["app"]), "leave out \"app\"");
    refused(&mut command(dir.path(), "a cache", &[]), "URL");
    refused(samovar().args(["mount", "--store", url]), "REF|STOREPATH");
    refused(samovar().args(["mount", "app"]), "DIR");
    let mut offline = command(dir.path(), url, &["--offline"]);
    refused(offline.args(["--trusted-public-keys", "a-1:AAAA"]), "");
}
