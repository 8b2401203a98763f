//! Resource use and pressure (PSI) of this process's control group, version 1 or 2: the group of
//! its container or service.

use std::fs;
use std::path::{Path, PathBuf};

/// Mount point of control groups; if versions 1 and 2 are both mounted, version 2 is in `unified`.
const MOUNT: &str = "sys/fs/cgroup";
/// Memory limits from this value on mean that there is no limit: without a limit, version 1 reports
/// the largest number of pages, in bytes.
const NO_LIMIT: u64 = 1 << 60;

/// Values at one moment; `None` if the kernel does not report a value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Group {
    /// CPU time, in seconds.
    pub cpu_s: Option<f64>,
    /// Time throttled by the CPU quota, in seconds.
    pub throttled_s: Option<f64>,
    /// Memory in use, including page cache, in bytes.
    pub memory_len: Option<u64>,
    /// Memory limit, in bytes.
    pub memory_max: Option<u64>,
    /// Pressure of each resource.
    pub pressure: Vec<Pressure>,
}

/// Pressure stall information of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    /// `cpu`, `memory` or `io`.
    pub resource: &'static str,
    /// `cgroup`, or `machine` where the kernel reports only that.
    pub scope: &'static str,
    /// Seconds in which at least one task waited.
    pub some_s: f64,
    /// Seconds in which all tasks waited; `None` for the CPU of a whole machine.
    pub full_s: f64,
}

impl Group {
    /// Reads the current values.
    pub fn now() -> Self {
        Self::of(Path::new("/"))
    }

    /// Reads the values below `root`.
    fn of(root: &Path) -> Self {
        let list = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let unified = folder_of(root, &list, "");
        let cpu = folder_of(root, &list, "cpuacct");
        let quota = folder_of(root, &list, "cpu");
        let memory = folder_of(root, &list, "memory");
        let mut group = Self::default();
        if let Some(folder) = &unified {
            let stat = fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
            group.cpu_s = field(&stat, "usage_usec").map(|us| seconds(us, 1_000_000));
            group.throttled_s = field(&stat, "throttled_usec").map(|us| seconds(us, 1_000_000));
            group.memory_len = number(folder, "memory.current");
            group.memory_max = number(folder, "memory.max");
        }
        if let (None, Some(folder)) = (group.cpu_s, cpu) {
            group.cpu_s = number(&folder, "cpuacct.usage").map(|ns| seconds(ns, 1_000_000_000));
        }
        if let (None, Some(folder)) = (group.throttled_s, quota) {
            let stat = fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
            group.throttled_s = field(&stat, "throttled_time").map(|ns| seconds(ns, 1_000_000_000));
        }
        if let (None, Some(folder)) = (group.memory_len, memory) {
            group.memory_len = number(&folder, "memory.usage_in_bytes");
            group.memory_max = number(&folder, "memory.limit_in_bytes");
        }
        group.memory_max = group.memory_max.filter(|len| *len < NO_LIMIT);
        let resources = ["cpu", "memory", "io"].into_iter();
        group.pressure = resources
            .filter_map(|resource| pressure(root, unified.as_deref(), resource))
            .collect();
        group
    }
}

/// Returns the folder of this process's group for the version 1 controller `name`, or for version 2
/// if `name` is empty.
fn folder_of(root: &Path, list: &str, name: &str) -> Option<PathBuf> {
    let path = list.lines().find_map(|line| {
        // Lines look like `4:memory:/a/b` and `0::/a/b`.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|it| it == name).then_some(path)
    })?;
    let mount = root.join(MOUNT);
    let mounts = if name.is_empty() {
        [mount.join("unified"), mount]
    } else {
        [mount.join(name), mount]
    };
    let has_any = |folder: &PathBuf| {
        let files = ["cgroup.controllers", "cgroup.procs"];
        files.iter().any(|file| folder.join(file).exists())
    };
    // In a container, the process's own group is often mounted at the root.
    let own = mounts
        .iter()
        .map(|it| it.join(path.trim_start_matches('/')));
    own.chain(mounts.iter().cloned()).find(has_any)
}

fn pressure(root: &Path, unified: Option<&Path>, resource: &'static str) -> Option<Pressure> {
    let own = unified.map(|folder| folder.join(format!("{resource}.pressure")));
    let own = own.and_then(|file| fs::read_to_string(file).ok());
    let scope = if own.is_some() { "cgroup" } else { "machine" };
    let machine = || fs::read_to_string(root.join("proc/pressure").join(resource)).ok();
    let text = own.or_else(machine)?;
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let (_, total) = line.rsplit_once("total=")?;
        Some(seconds(total.trim().parse().ok()?, 1_000_000))
    };
    Some(Pressure {
        resource,
        scope,
        some_s: total("some")?,
        full_s: total("full").unwrap_or(0.0),
    })
}

/// Reads a file that contains one number; returns `None` if it contains `max`.
fn number(folder: &Path, file: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    text.trim().parse().ok()
}

/// Returns the number after `name` in a file whose lines are `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut fields = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = fields.find(|(field, _)| *field == name)?;
    value.trim().parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "times are no larger")]
fn seconds(count: u64, of_second: u64) -> f64 {
    count as f64 / of_second as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the group from files with the contents that kernels write.
    fn machine(files: &[(&str, &str)]) -> Group {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Group::of(root.path())
    }

    #[test]
    fn version_2() {
        let waited = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n\
                      full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n";
        let folder = "sys/fs/cgroup/system.slice/kettles.service";
        let file = |name: &str| format!("{folder}/{name}");
        let group = machine(&[
            ("proc/self/cgroup", "0::/system.slice/kettles.service\n"),
            ("proc/pressure/io", waited),
            (&file("cgroup.controllers"), "cpu io memory\n"),
            (
                &file("cpu.stat"),
                "usage_usec 1500000\nthrottled_usec 250000\n",
            ),
            (&file("memory.current"), "4096\n"),
            (&file("memory.max"), "max\n"),
            (&file("memory.pressure"), waited),
        ]);
        let pressure = |resource, scope| Pressure {
            resource,
            scope,
            some_s: 2.5,
            full_s: 0.5,
        };
        let expected = Group {
            cpu_s: Some(1.5),
            throttled_s: Some(0.25),
            memory_len: Some(4096),
            memory_max: None,
            pressure: vec![pressure("memory", "cgroup"), pressure("io", "machine")],
        };
        assert_eq!(group, expected);
    }

    #[test]
    fn version_1_in_a_container() {
        let group = machine(&[
            (
                "proc/self/cgroup",
                "4:memory:/docker/1f\n2:cpu,cpuacct:/docker/1f\n0::/\n",
            ),
            // The group's own folder is the root of the mount.
            ("sys/fs/cgroup/memory/cgroup.procs", "1\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "8192\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/cpuacct/docker/1f/cgroup.procs", "1\n"),
            (
                "sys/fs/cgroup/cpuacct/docker/1f/cpuacct.usage",
                "3000000000\n",
            ),
            ("sys/fs/cgroup/cpu/docker/1f/cgroup.procs", "1\n"),
            (
                "sys/fs/cgroup/cpu/docker/1f/cpu.stat",
                "nr_throttled 1\nthrottled_time 500000000\n",
            ),
        ]);
        let expected = Group {
            cpu_s: Some(3.0),
            throttled_s: Some(0.5),
            memory_len: Some(8192),
            memory_max: None,
            pressure: Vec::new(),
        };
        assert_eq!(group, expected);
        assert_eq!(machine(&[]), Group::default());
    }
}
