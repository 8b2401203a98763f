//! Describes the measuring machine, and chooses the network settings of a run.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Environment variable that marks the process inside a separate network namespace. `samovar`
/// refuses unknown variables whose names start with `SAMOVAR_`.
const INSIDE: &str = "BENCH_NETWORK_NAMESPACE";

/// The kernel's file with the congestion control of new TCP sockets.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Returns whether this process was started by [`enter_network_namespace`].
pub(crate) fn is_inside_namespace() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Limits the rate of the loopback interface, in bits per second, as a network card would. Returns
/// `false` if that is not possible, or would affect other programs of the machine.
pub(crate) fn limit_loopback(rate: u32) -> bool {
    if !is_inside_namespace() {
        return false;
    }
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "replace", "dev", "lo", "root", "tbf"]);
    tc.args([
        "rate",
        &format!("{rate}bit"),
        "burst",
        "256kb",
        "latency",
        "50ms",
    ]);
    tc.stdout(Stdio::null()).stderr(Stdio::null());
    tc.status().is_ok_and(|status| status.success())
}

/// Restarts this program in a network namespace without BBR, if the machine permits it.
///
/// BBR, a common default, puts pacing timers between client and server, which share the cores on
/// loopback: a server that writes much at once seems slow. A namespace may only use algorithms that
/// the machine allows for all users; `reno` always is allowed, and equals `cubic` without loss. If
/// even that is refused the run continues, and [`describe`] reports the algorithm in use.
pub(crate) fn enter_network_namespace() {
    if is_inside_namespace() || read(CONGESTION_CONTROL) != "bbr" {
        return;
    }
    let script = format!(
        "ip link set lo up && \
         for name in cubic reno; do echo $name >{CONGESTION_CONTROL} && break; done"
    );
    let mut attempt = Command::new("unshare");
    attempt
        .args(["--net", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !attempt.status().is_ok_and(|status| status.success()) {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let error = Command::new("unshare")
        .args([
            "--net",
            "sh",
            "-c",
            &format!("{{ {script}; }} 2>/dev/null; exec \"$0\" \"$@\""),
        ])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    crate::progress(&format!("staying in the network of the machine: {error}"));
}

/// Returns the machine's load averages as text.
pub(crate) fn load() -> String {
    read("/proc/loadavg")
        .split(' ')
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Describes in one line where and how the figures were measured. `programs` took part besides the
/// servers; `how` states number and length of the rounds.
pub(crate) fn describe(programs: &[&str], how: &str, load_before: &str) -> String {
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let memory_kib: u64 = memory_kib
        .trim_end_matches(" kB")
        .parse()
        .unwrap_or_default();
    let versions = programs.iter().map(|name| version(name));
    let versions: Vec<String> = versions.collect();
    let versions = match &versions[..] {
        [] => String::new(),
        versions => versions.join(", ") + "; ",
    };
    format!(
        "{cores} cores of {model}, {} GiB, Linux {}, loopback with {}, client on the same cores; \
         {}{how}; load {load_before} before and {} after.\n",
        memory_kib >> 20,
        read("/proc/sys/kernel/osrelease"),
        read(CONGESTION_CONTROL),
        versions,
        load()
    )
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the value of the first line `name : value` in a file; `None` if there is no such line.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the first word with digits in a program's version output, whose format differs between
/// programs.
fn version(program: &str) -> String {
    let path = crate::nginx::find(program);
    let Ok(said) = Command::new(path).arg("-v").output() else {
        return format!("no {program}");
    };
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let number = said
        .split([' ', '/', '\n'])
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    format!("{program} {}", number.unwrap_or("of unknown version"))
}

/// Writes 1 GiB to tmpfs and to the disk of `scratch`, and deletes it.
///
/// Hosts of virtual machines may take back pages that have been free for some seconds. To get such
/// a page back costs ten times as much as to use another one. So each measurement of something that
/// fills the page cache starts with pages that were used a moment ago.
pub(crate) fn free_pages(scratch: &Path) -> io::Result<()> {
    const LEN: usize = 1 << 30;
    let piece = vec![0; 1 << 20];
    for directory in [Path::new("/dev/shm"), scratch] {
        if directory.is_dir() {
            let mut file = tempfile::tempfile_in(directory)?;
            for _ in 0..LEN / piece.len() {
                match file.write_all(&piece) {
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    written => written?,
                }
            }
        }
    }
    Ok(())
}
