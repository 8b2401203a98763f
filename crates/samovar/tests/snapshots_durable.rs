//! An acknowledged push of a directory survives power cuts of the server, and kills of the server
//! and of the client. A ref never points to a tree that nobody has pushed, and no file of the
//! pushed directory is changed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_volatile;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use support::{samovar, secret_file};
use support_uploads::{Running, Site, address_of};
use support_volatile::{Kept, VolatileDisk};
use testkit::eventually;
use testkit::process::{Process, output};

/// Shares of unsynced data that power cuts keep.
const KEPT: [Kept; 4] = [
    Kept::percent(0, 0),
    Kept::percent(0, 100),
    Kept::percent(100, 0),
    Kept::percent(60, 60),
];

/// Number of files in the directory. Each contains the number of the push.
const FILE_COUNT: u64 = 40;

/// Returns the number of rounds: that of an environment variable, or the default.
fn round_count(variable: &str, default: u64) -> u64 {
    let number = std::env::var(variable).ok();
    number.map_or(default, |text| text.parse().unwrap())
}

/// A directory that is pushed again and again.
struct Pushed {
    directory: PathBuf,
    token: PathBuf,
    /// Number of the last state that was written.
    last: u64,
    /// Number of the last state whose push was acknowledged.
    acknowledged: u64,
}

impl Pushed {
    fn new(site: &Site) -> Self {
        let directory = site.dir().join("source");
        fs::create_dir_all(directory.join("below")).unwrap();
        let token = site.token(&["--rights", "read,push,pin"]);
        let token = secret_file(site.dir(), "token", &token);
        Self {
            directory,
            token,
            last: 0,
            acknowledged: 0,
        }
    }

    /// Writes the next state.
    fn change(&mut self) {
        self.last += 1;
        for file in 0..FILE_COUNT {
            // Some contents stay, so that recipes have something to copy.
            let text = match file % 4 {
                0 => "the same".repeat(4000),
                _ => self.last.to_string(),
            };
            let path = self.directory.join(format!("below/{file}"));
            if fs::read_to_string(&path).is_ok_and(|old| old == text) {
                continue;
            }
            fs::write(path, text).unwrap();
        }
    }

    fn command(&self, url: &str) -> Command {
        let mut command = samovar();
        command.arg("push").arg(&self.directory);
        command
            .arg(format!("{url}#app"))
            .arg("--public")
            .arg("--token-file");
        command
            .arg(&self.token)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Pushes until `is_over`, and then kills the client. Returns whether a push succeeded last.
    fn push_until(&mut self, url: &str, is_over: impl Fn(&mut Child) -> bool) {
        loop {
            self.change();
            let mut client = self.command(url).spawn().unwrap();
            let status = loop {
                if let Some(status) = client.try_wait().unwrap() {
                    break Some(status);
                }
                if is_over(&mut client) {
                    client.kill().unwrap();
                    let status = client.wait().unwrap();
                    break status.success().then_some(status);
                }
                thread::sleep(Duration::from_millis(1));
            };
            match status {
                Some(status) if status.success() => self.acknowledged = self.last,
                _ => return,
            }
            if is_over(&mut client) {
                return;
            }
        }
    }

    /// Asserts that the newest generation is the acknowledged state or a later one, and that the
    /// directory has its last state.
    fn check(&mut self, url: &str, copy: &Path) {
        // Perhaps no push has begun, because the server was cut off while it started.
        if self.last > 0 {
            assert_eq!(states(&self.directory), BTreeSet::from([self.last]));
        }
        if self.acknowledged > 0 {
            let mut pull = samovar();
            pull.arg("pull").arg(format!("{url}#app")).arg(copy);
            output(pull.arg("--token-file").arg(&self.token));
            let found = states(copy);
            assert_eq!(found.len(), 1, "the tree is a mixture of {found:?}");
            let found = found.into_iter().next().unwrap();
            assert!(
                (self.acknowledged..=self.last).contains(&found),
                "state {found} was found, {} was acknowledged",
                self.acknowledged
            );
            fs::remove_dir_all(copy).unwrap();
        }
        // The next push succeeds, whatever the interrupted one has left behind.
        self.change();
        let status = self.command(url).status().unwrap();
        assert!(status.success(), "the push after the interruption failed");
        self.acknowledged = self.last;
    }
}

/// Returns the numbers in the files of a directory.
fn states(directory: &Path) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for file in 0..FILE_COUNT {
        let text = fs::read_to_string(directory.join(format!("below/{file}"))).unwrap();
        match file % 4 {
            0 => assert_eq!(text, "the same".repeat(4000)),
            _ => drop(found.insert(text.parse().unwrap())),
        }
    }
    found
}

#[test]
fn acknowledged_generations_survive_power_cuts() {
    let dir = tempfile::tempdir().unwrap();
    let disk = VolatileDisk::new(7);
    let at = dir.path().join("disk");
    fs::create_dir(&at).unwrap();
    let Some(mut mounted) = disk.mount(&at) else {
        return;
    };
    let site = Site::with_storage(dir, at.join("storage"));
    let copy = site.dir().join("copy");
    let mut server = site.start();
    let mut pushed = Pushed::new(&site);
    let rounds = round_count("SAMOVAR_POWER_CUTS", 8);
    for (cut, kept) in (0..rounds).zip(KEPT.iter().cycle()) {
        server.process.terminate();
        // A start makes some tens of calls that change or sync something, a push about a hundred.
        disk.cut_after(40 + cut * 37 % 300, *kept);
        let mut process = Process::spawn(samovar().args(site.arguments()));
        if let Some(address) = address_of(&mut process) {
            let running = Running { process, address };
            pushed.push_until(&running.url(), |_client| disk.is_cut());
        }
        drop(mounted);
        mounted = disk.mount(&at).unwrap();
        server = site.start();
        pushed.check(&server.url(), &copy);
    }
    server.process.terminate();
    drop(mounted);
}

#[test]
fn acknowledged_generations_survive_kills() {
    let site = Site::new();
    let copy = site.dir().join("copy");
    let mut server = site.start();
    let mut pushed = Pushed::new(&site);
    for round in 0..round_count("SAMOVAR_KILLS", 16) {
        let delay = Duration::from_millis(round * 29 % 160);
        let url = server.url();
        if round % 2 == 0 {
            // Kill the client.
            let started_at = std::time::Instant::now();
            pushed.push_until(&url, |_client| started_at.elapsed() >= delay);
        } else {
            // Kill the server; the client would wait for it.
            thread::scope(|scope| {
                let process = &server.process;
                scope.spawn(|| {
                    thread::sleep(delay);
                    process.signal("KILL");
                });
                let started_at = std::time::Instant::now();
                let limit = delay + Duration::from_millis(200);
                pushed.push_until(&url, |_client| started_at.elapsed() >= limit);
            });
            eventually("the server can start again", || {
                let mut process = Process::spawn(samovar().args(site.arguments()));
                let Some(address) = address_of(&mut process) else {
                    return false;
                };
                server = Running { process, address };
                true
            });
        }
        pushed.check(&server.url(), &copy);
    }
}
