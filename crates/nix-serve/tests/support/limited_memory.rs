//! Limits the memory of a server by a separate control group.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it has not tested"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{bare, eventually, nix_serve};

/// A control group. Dropping it removes the group, after all its processes have ended.
pub(crate) struct LimitedMemory {
    group: PathBuf,
    files: &'static Files,
}

/// File names, which differ between the two versions of control groups.
struct Files {
    root: &'static str,
    /// This file exists if memory can be limited on this machine.
    sign: &'static str,
    limit: &'static str,
    peak: &'static str,
    stat: &'static str,
    anonymous: &'static str,
    events: &'static str,
}

const VERSION_1: Files = Files {
    root: "/sys/fs/cgroup/memory",
    sign: "memory.limit_in_bytes",
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    stat: "memory.stat",
    anonymous: "total_rss ",
    events: "memory.oom_control",
};

const VERSION_2: Files = Files {
    root: "/sys/fs/cgroup",
    sign: "cgroup.controllers",
    limit: "memory.max",
    peak: "memory.peak",
    stat: "memory.stat",
    anonymous: "anon ",
    events: "memory.events",
};

impl LimitedMemory {
    /// Creates a group limited to `len_max` bytes. Prints a message and returns `None` where that
    /// is impossible.
    pub(crate) fn new(len_max: u64) -> Option<Self> {
        let mut reasons = Vec::new();
        for files in [&VERSION_1, &VERSION_2] {
            match Self::make(files, len_max) {
                Ok(group) => return Some(group),
                Err(error) => reasons.push(format!("{}: {error}", files.root)),
            }
        }
        eprintln!("NOT TESTED: a limit of memory. No control group can be made here: {reasons:?}");
        None
    }

    fn make(files: &'static Files, len_max: u64) -> std::io::Result<Self> {
        let root = Path::new(files.root);
        fs::metadata(root.join(files.sign))?;
        let group = root.join(format!("samovar-test-{}", std::process::id()));
        fs::create_dir(&group)?;
        let group = Self { group, files };
        fs::write(group.group.join(files.limit), len_max.to_string())?;
        Ok(group)
    }

    /// Returns the server's command, to run inside the control group.
    pub(crate) fn nix_serve(&self) -> Command {
        let mut command = bare("sh");
        let script = "echo $$ > \"$1\" && shift && exec \"$@\"";
        command.args(["-c", script, "sh"]);
        command.arg(self.group.join("cgroup.procs"));
        command.arg(nix_serve().get_program());
        command
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.group.join(file)).unwrap()
    }

    fn number(&self, file: &str, name: &str) -> u64 {
        let text = self.read(file);
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
        values
            .next()
            .map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Returns the peak memory of the group in bytes, including the page cache.
    pub(crate) fn peak_len(&self) -> u64 {
        let peak = fs::read_to_string(self.group.join(self.files.peak));
        peak.map_or(0, |peak| peak.trim().parse().unwrap())
    }

    /// Returns the memory of the group, in bytes, that the kernel cannot reclaim.
    pub(crate) fn anonymous_len(&self) -> u64 {
        self.number(self.files.stat, self.files.anonymous)
    }

    /// Returns the number of processes killed by the OOM killer.
    pub(crate) fn killed_count(&self) -> u64 {
        self.number(self.files.events, "oom_kill ")
    }
}

impl Drop for LimitedMemory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            eventually("everything in the group has ended", || {
                self.read("cgroup.procs").is_empty()
            });
        }
        fs::remove_dir(&self.group).ok();
    }
}
