//! Resource usage of this process, from `/proc`.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::status::ProcessStatus;

/// Resource usage of this process; fields that cannot be read are zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) status: ProcessStatus,
    pub(crate) virtual_len: u64,
    /// Whether the number of file descriptors is limited. If it is not, `max_fds` of the status is
    /// 0.
    pub(crate) limits_fds: bool,
    /// Start time, a Unix time in seconds.
    pub(crate) started_s: f64,
}

/// CPU time of all threads of one kind, summed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThreadTime {
    /// Kind of thread: `io-0`, `io-1` and so on; `worker`; or `other`.
    pub(crate) name: String,
    /// Time spent on a CPU, in seconds.
    pub(crate) busy_s: f64,
    /// Time spent waiting for a CPU while runnable, in seconds.
    pub(crate) waited_s: f64,
}

impl ThreadTime {
    pub(crate) fn is_io(&self) -> bool {
        self.name.starts_with("io-")
    }
}

impl Process {
    pub(crate) fn now() -> Self {
        let stat = read("/proc/self/stat");
        // The command name in front of these fields may itself contain `) `, so split at the last
        // one.
        let fields: Vec<&str> = match stat.rsplit_once(") ") {
            Some((_, rest)) => rest.split(' ').collect(),
            None => Vec::new(),
        };
        // Field numbers as in `proc_pid_stat(5)`, starting at 1. The first two are in front of the
        // parenthesis.
        let field = |number: usize| fields.get(number - 3).map_or(0, |text| number_of(text));
        let ticks = per_second();
        #[expect(clippy::cast_precision_loss, reason = "times are no larger")]
        let seconds = |count: u64| count as f64 / ticks;
        let boot_s = read("/proc/stat")
            .lines()
            .find_map(|line| line.strip_prefix("btime "))
            .map_or(0.0, |text| text.trim().parse().unwrap_or(0.0));
        let count = |directory: &str| fs::read_dir(directory).map_or(0, |list| list.count() as u64);
        let max_fds = getrlimit(Resource::Nofile).current;
        Self {
            status: ProcessStatus {
                pid: std::process::id(),
                cpu_s: seconds(field(14) + field(15)),
                resident_len: field(24) * page_size() as u64,
                // Do not count the descriptor with which this directory is listed.
                open_fds: count("/proc/self/fd").saturating_sub(1),
                max_fds: max_fds.unwrap_or(0),
                thread_count: field(20),
            },
            virtual_len: field(23),
            limits_fds: max_fds.is_some(),
            started_s: boot_s + seconds(field(22)),
        }
    }
}

/// Returns the CPU times of all threads, summed over threads of one kind.
pub(crate) fn thread_times() -> Vec<ThreadTime> {
    let mut times: Vec<ThreadTime> = Vec::new();
    let Ok(list) = fs::read_dir("/proc/self/task") else {
        return times;
    };
    for thread in list.filter_map(Result::ok) {
        let read_of = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let name = kind_of(read_of("comm").trim_end());
        // Time on a CPU and time waiting for one, in nanoseconds.
        let schedstat = read_of("schedstat");
        let mut numbers = schedstat.split_ascii_whitespace().map(number_of);
        #[expect(clippy::cast_precision_loss, reason = "times are no larger")]
        let mut next_s = || numbers.next().unwrap_or(0) as f64 / 1e9;
        let (busy_s, waited_s) = (next_s(), next_s());
        match times.iter_mut().find(|time| time.name == name) {
            Some(time) => {
                time.busy_s += busy_s;
                time.waited_s += waited_s;
            }
            None => times.push(ThreadTime {
                name,
                busy_s,
                waited_s,
            }),
        }
    }
    times.sort_by(|one, other| one.name.cmp(&other.name));
    times
}

/// Returns the kind of a thread from its name. Each I/O thread is a kind of its own; the others are
/// `worker` and `other`.
fn kind_of(name: &str) -> String {
    let is_io = name.strip_prefix("io-").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let kind = if is_io || name == "worker" {
        name
    } else {
        "other"
    };
    kind.to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "it is 100")]
fn per_second() -> f64 {
    clock_ticks_per_second() as f64
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number_of(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn memory_descriptors_and_threads_of_the_process_are_counted() {
        let before = Process::now();
        let files: Vec<_> = (0..10)
            .map(|_| fs::File::open("/dev/null").expect("opens"))
            .collect();
        let memory = vec![1_u8; 64 << 20];
        let now = Process::now();
        assert!(now.status.resident_len >= before.status.resident_len + (memory.len() as u64) / 2);
        assert!(now.status.open_fds >= files.len() as u64);
        assert!(!now.limits_fds || now.status.max_fds >= now.status.open_fds);
        assert!(now.status.thread_count >= 2);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let age_s = since_1970.expect("is later").as_secs_f64() - now.started_s;
        assert!((-2.0..3600.0).contains(&age_s), "{age_s}");
    }

    #[test]
    fn the_cpu_time_of_an_io_thread_is_reported_by_its_name() {
        let find = || {
            let times = thread_times();
            times.into_iter().find(|time| time.name == "io-7")
        };
        let named = std::thread::Builder::new().name("io-7".to_owned());
        let busy = named.spawn(move || {
            let mut sum = 0_u64;
            while find().is_none_or(|time| time.busy_s < 0.02) {
                sum = (0..100_000).fold(sum, |sum, number| sum ^ number);
            }
            std::hint::black_box(sum);
        });
        busy.expect("starts").join().expect("ends");
        assert_eq!(kind_of("io-x"), "other");
        assert_eq!(kind_of("io-"), "other");
        assert_eq!(kind_of("worker"), "worker");
    }
}
