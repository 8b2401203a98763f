//! Resource use of this process, from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Values of this process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Resident memory, in bytes.
    pub resident_len: u64,
    /// Anonymous resident memory, in bytes: heaps and stacks.
    pub anonymous_len: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Limit of open file descriptors.
    pub max_fds: Option<u64>,
}

impl Process {
    /// Reads the current values.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The process name in parentheses may contain any character.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let fields: Vec<u64> = rest
            .split(' ')
            .map(|text| text.parse().unwrap_or(0))
            .collect();
        // Field numbers of `proc_pid_stat(5)`, from 1; two precede the parenthesis.
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let page_len = rustix::param::page_size() as u64;
        #[expect(clippy::cast_precision_loss, reason = "times are no larger")]
        let ticks = |count: u64| count as f64 / rustix::param::clock_ticks_per_second() as f64;
        Self {
            cpu_s: ticks(field(14) + field(15)),
            resident_len: field(24) * page_len,
            anonymous_len: anonymous_len(),
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current,
        }
    }
}

fn anonymous_len() -> u64 {
    let kib = status("RssAnon:").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns whether the process ignores a signal, as under `nohup`.
pub fn is_ignored(signal: i32) -> bool {
    let mask = status("SigIgn:").and_then(|text| u64::from_str_radix(&text, 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns the value of a field in `/proc/self/status`.
fn status(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let text = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(text.trim().to_owned())
}

/// Returns the total length of the accept queues at `ports`.
pub fn backlog(ports: &[u16]) -> u64 {
    let files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter();
    files
        .filter_map(|file| fs::File::open(file).ok())
        .flat_map(|file| {
            let lines = BufReader::new(file).lines().map_while(Result::ok).skip(1);
            // Listening sockets come first, before those of ten thousand connections.
            lines.map_while(|line| listening(&line))
        })
        .filter(|(port, _)| ports.contains(port))
        .map(|(_, count)| count)
        .sum()
}

/// Returns port and accept queue length of a listening socket, from its line in /proc/net/tcp
/// (`proc_pid_net(5)`).
fn listening(line: &str) -> Option<(u16, u64)> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, port) = fields.next()?.rsplit_once(':')?;
    let is_listening = fields.nth(1)? == "0A";
    let (_, waiting) = fields.next()?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let waiting = u64::from_str_radix(waiting, 16).ok()?;
    is_listening.then_some((port, waiting))
}

/// Returns the number of open descriptors. Linux 6.2 and later report it; on older kernels,
/// counting twenty thousand entries takes 20 ms.
fn open_fds() -> u64 {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER).map_or(0, |metadata| metadata.len()) {
        0 => {
            let count = fs::read_dir(FOLDER).map_or(0, |list| list.count() as u64);
            // Excludes the descriptor that is open for counting.
            count.saturating_sub(1)
        }
        count => count,
    }
}

/// Returns the CPU time of threads by kind, in seconds.
pub fn thread_times() -> BTreeMap<String, f64> {
    let mut times = BTreeMap::new();
    let list = fs::read_dir("/proc/self/task").into_iter().flatten();
    for thread in list.filter_map(Result::ok) {
        let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let stat = read("schedstat");
        let nanos: u64 = stat
            .split(' ')
            .next()
            .map_or(0, |text| text.parse().unwrap_or(0));
        #[expect(clippy::cast_precision_loss, reason = "times are no larger")]
        let seconds = nanos as f64 / 1e9;
        *times.entry(read("comm").trim_end().to_owned()).or_default() += seconds;
    }
    times
}

/// Raises the limit of open files to the maximum, because each connected kettle needs a descriptor.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        crate::log::error("cannot raise the limit of open files", &error);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_in_the_accept_queue_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(backlog(&[addr.port()]), 0);
        let _waiting = [(); 3].map(|()| TcpStream::connect(addr).unwrap());
        assert_eq!(backlog(&[addr.port()]), 3);
        let _accepted = listener.accept().unwrap();
        assert_eq!(backlog(&[addr.port()]), 2);
        assert_eq!(backlog(&[]), 0);
    }
}
