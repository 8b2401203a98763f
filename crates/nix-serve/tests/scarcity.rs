//! Without descriptors or room on the disk the server goes on, loses nothing but log lines, and is
//! as before when there are some again.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it could not do"
)]

#[path = "support/burden.rs"]
mod burden;
mod support;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use burden::{ask, cpu_time, descriptor_count, with_descriptors};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{ServerProcess, eventually, hash_part, local, nix_serve, sample, sample_root};

/// A file system in memory of one megabyte.
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
    // Lines are whole again, and somebody says how many there are not.
    eventually("lines are written again", || {
        assert_eq!(server.get(&format!("{path}?again")).status, 200);
        fs::read_to_string(&log).unwrap().contains("?again")
    });
    let line = server.wait_for_line("access log");
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
    let before = descriptor_count(pid);
    let cpu = cpu_time(pid);
    let start = Instant::now();
    let crowd: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(server.addr).unwrap();
            ask(&mut stream, "GET", &nar, b"");
            stream
        })
        .collect();
    // Nobody is answered wrongly meanwhile; 503 and a connection that is closed are no answers.
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
    eventually("nothing is left", || descriptor_count(pid) <= before + 4);
}
