//! Without free descriptors or disk space the server continues to run and loses only log lines. It
//! recovers when there are free ones again.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it could not do"
)]

#[path = "support/burden.rs"]
mod burden;
mod support;
mod support_process;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use burden::{ask, cpu_time, with_descriptors};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{ServerProcess, eventually, hash_part, local, nix_serve, sample, sample_root};
use support_process::Process;
use testkit::http1::Connection;

/// A tmpfs of one megabyte.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = c"size=1m";
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                eprintln!("SKIPPED: no file system can be mounted here: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let full = fs::write(self.path().join("full"), vec![b'x'; 2 << 20]);
        assert!(full.is_err(), "it is full now");
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("full")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::DETACH).ok();
    }
}

#[test]
fn a_full_disk_costs_log_lines_alone() {
    let Some(disk) = SmallDisk::new() else { return };
    let log = disk.path().join("access");
    let mut server = ServerProcess::start(
        nix_serve()
            .args(["--store", &local(&sample_root()), "--access-log"])
            .arg(&log),
    );
    let path = format!("/{}.narinfo", hash_part(&sample("tree")));
    assert_eq!(server.get(&path).status, 200);
    eventually("the first line is there", || {
        fs::read_to_string(&log).unwrap().lines().count() == 1
    });
    disk.fill();
    for _ in 0..500 {
        assert_eq!(server.get(&path).status, 200);
    }
    disk.empty();
    // Lines are complete again, and one line states the number of lost lines.
    eventually("lines are written again", || {
        assert_eq!(server.get(&format!("{path}?again")).status, 200);
        fs::read_to_string(&log).unwrap().contains("?again")
    });
    let line = server.wait_for("access log");
    println!("{line}");
    assert!(server.is_alive());
}

#[test]
fn few_descriptors_cost_connections_alone() {
    const DESCRIPTORS: u64 = 64;
    let store = local(&sample_root());
    let server = ServerProcess::start(with_descriptors(DESCRIPTORS).args(["--store", &store]));
    let pid = server.child.id();
    let tree = sample("tree");
    let (narinfo, nar) = (
        format!("/{}.narinfo", hash_part(&tree)),
        format!("/nar/{}.nar", hash_part(&tree)),
    );
    let expected = server.get(&nar);
    assert!(expected.is_complete);
    let before = besides_database(pid);
    let cpu = cpu_time(pid);
    let start = Instant::now();
    let crowd: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(server.addr).unwrap();
            ask(&mut stream, "GET", &nar, b"");
            stream
        })
        .collect();
    // Each response sent meanwhile is right. Status 503 and closed connections are ignored.
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.addr).unwrap();
        let patience = Duration::from_millis(20);
        stream.set_read_timeout(Some(patience)).unwrap();
        ask(&mut stream, "GET", &narinfo, b"");
        let mut head = [0; 12];
        if std::io::Read::read_exact(&mut stream, &mut head).is_ok() {
            assert!(
                matches!(&head, b"HTTP/1.1 200" | b"HTTP/1.1 503"),
                "{head:?}"
            );
        }
    }
    let (used, time) = (cpu_time(pid) - cpu, start.elapsed());
    println!("{used:?} of CPU in {time:?} without descriptors");
    drop(crowd);
    eventually("all is as before", || {
        let answer = server.get(&nar);
        answer.status == 200 && answer.is_complete && answer.body == expected.body
    });
    eventually("nothing is left", || besides_database(pid) <= before + 4);
}

/// Counts the descriptors of a process except its database connections: the server keeps one open
/// per concurrent reader.
fn besides_database(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    links
        .filter(|link| !link.to_string_lossy().contains("db.sqlite"))
        .count()
}

/// Finds the address in the log line of a listener.
fn address_in(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().find(|line| line.contains(" on http"))?;
    Some(support_process::address_in(line))
}

#[test]
fn a_full_disk_under_the_error_log_costs_its_lines_alone() {
    let Some(disk) = SmallDisk::new() else { return };
    let log = disk.path().join("errors");
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--error-log"]);
    command.arg(&log);
    command.args(["--store", &local(&sample_root())]);
    let mut server = Process::spawn(&mut command);
    eventually("it serves", || address_in(&log).is_some());
    let addr = address_in(&log).unwrap();
    disk.fill();
    let path = format!("/{}.narinfo", hash_part(&sample("tree")));
    let mut connection = Connection::connect(addr);
    let mut say_and_ask = || {
        server.signal("USR1");
        assert_eq!(connection.get(&path).status, 200);
    };
    // The last page of the file has space for some more lines.
    eventually("a line breaks off", || {
        say_and_ask();
        fs::metadata(&log).unwrap().len().is_multiple_of(4096)
    });
    (0..20).for_each(|_| say_and_ask());
    disk.empty();
    eventually("it says that there were lines", || {
        server.signal("USR1");
        let text = fs::read_to_string(&log).unwrap();
        text.contains("error log: ") && text.contains(" lines were lost")
    });
    assert!(fs::read_to_string(&log).unwrap().ends_with('\n'));
    assert!(server.is_alive());
}

#[test]
fn a_full_disk_under_the_pid_file_is_said_and_ends_nothing() {
    let Some(disk) = SmallDisk::new() else { return };
    let file = disk.path().join("pid");
    let with_pid_file = || {
        let mut command = nix_serve();
        command.args(["--store", &local(&sample_root()), "--pid"]);
        command.arg(&file);
        command
    };
    let server = ServerProcess::start(&mut with_pid_file());
    let written = fs::read_to_string(&file).unwrap();
    disk.fill();
    // The successor fails, because it cannot write a PID file.
    server.signal("USR2");
    let line = server.wait_for("cannot write the PID file");
    println!("{line}");
    server.wait_for("this process continues to serve");
    assert_eq!(server.get("/nix-cache-info").status, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    drop(server);
    fs::remove_file(&file).unwrap();
    disk.fill();
    // A new server fails with one line, and leaves no file.
    let output = with_pid_file()
        .args(["--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot write the PID file") && text.lines().count() == 1);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1);
}
