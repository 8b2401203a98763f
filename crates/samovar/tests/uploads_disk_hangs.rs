//! While the disk with the uploaded files hangs, the server answers requests about its Nix store.
//! If the disk completes nothing for long, uploads are refused at once, instead of waiting for it,
//! and uploaded paths are still served.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_mount;
mod support_uploads;
mod support_volatile;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{
    BackgroundSession, Config, Errno, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig,
    ReplyAttr, ReplyEntry, Request, Session,
};
use support::{sample, sample_store};
use support_mount::can_mount;
use support_uploads::{MadePath, Site, bearer};
use support_volatile::VolatileDisk;
use testkit::eventually;
use testkit::nix::hash_part;

/// The requests that a [`Hanging`] file system has received.
#[derive(Default)]
struct Held {
    look_ups: Vec<ReplyEntry>,
    attributes: Vec<ReplyAttr>,
    is_over: bool,
}

/// A file system that answers no request until it is dropped, and then each with an error.
struct Hanging(Arc<Mutex<Held>>);

impl Filesystem for Hanging {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let parallel = InitFlags::FUSE_PARALLEL_DIROPS;
        config.add_capabilities(parallel).unwrap();
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        let mut held = self.0.lock().unwrap();
        match held.is_over {
            true => reply.error(Errno::EIO),
            false => held.look_ups.push(reply),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let mut held = self.0.lock().unwrap();
        match held.is_over {
            true => reply.error(Errno::EIO),
            false => held.attributes.push(reply),
        }
    }
}

/// A mounted [`Hanging`] file system.
struct Mounted {
    held: Arc<Mutex<Held>>,
    _session: BackgroundSession,
}

impl Mounted {
    fn on(directory: &Path) -> Self {
        let held = Arc::<Mutex<Held>>::default();
        let file_system = Hanging(Arc::clone(&held));
        let session = Session::new(file_system, directory, &Config::default());
        Self {
            held,
            _session: session.and_then(Session::spawn).unwrap(),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap();
        held.is_over = true;
        for reply in held.look_ups.drain(..) {
            reply.error(Errno::EIO);
        }
        for reply in held.attributes.drain(..) {
            reply.error(Errno::EIO);
        }
    }
}

#[test]
fn a_hanging_disk_of_uploads_does_not_stop_the_answers_about_the_store() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.configure(&sample_store(), "workers = 4\n");
    let server = site.start();
    let token = site.token(&[]);
    let paths: Vec<MadePath> = (0..12)
        .map(|n| MadePath::new(&format!("path-{n}")))
        .collect();
    for path in &paths {
        server.publish(&token, path);
        assert_eq!(server.get(&path.target()).status, 200);
    }
    let disk = Mounted::on(&site.storage().join("nar"));
    let send = |request: String| {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        client
    };
    let mut clients = Vec::new();
    for path in &paths {
        let hash_part = hash_part(&path.store_path);
        let len = hash_part.len() + 1;
        clients.push(send(format!(
            "GET /{hash_part}.narinfo HTTP/1.1\r\nHost: a\r\n\r\n"
        )));
        clients.push(send(format!(
            "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{hash_part}\n"
        )));
        clients.push(send(format!(
            "GET /closure/{hash_part} HTTP/1.1\r\nHost: a\r\n\r\n"
        )));
    }
    eventually("the disk hangs", || {
        !disk.held.lock().unwrap().look_ups.is_empty()
    });
    for name in ["self_reference", "text"] {
        let hash_part = hash_part(&sample(name)).to_owned();
        let mut client = send(format!(
            "GET /{hash_part}.narinfo HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut start = [0; 12];
        client.read_exact(&mut start).expect(name);
        assert_eq!(&start, b"HTTP/1.1 200", "{name}");
    }
}

#[test]
fn uploads_are_refused_while_the_disk_completes_no_flush() {
    uploads_are_refused_while(VolatileDisk::hang, "flush");
}

#[test]
fn uploads_are_refused_while_the_disk_is_frozen() {
    uploads_are_refused_while(VolatileDisk::freeze, "write");
}

/// Uploads that have begun wait as long as the disk hangs, and are acknowledged then. Meanwhile,
/// uploaded paths are served, however many uploads wait.
fn uploads_are_refused_while(hang: fn(&VolatileDisk), operation: &str) {
    let dir = tempfile::tempdir().unwrap();
    let storage = dir.path().join("storage");
    fs::create_dir(&storage).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&storage) else {
        return;
    };
    let site = Site::with_storage(dir, storage);
    site.configure_empty("workers = 4\n");
    let server = site.start();
    let token = site.token(&["--rights", "read,push,pin"]);
    let path = MadePath::new("before");
    server.publish(&token, &path);
    server.assert_serves(&path);
    hang(&disk);
    let _resumes = Resumes(&disk);
    let send = |method: &str, target: &str, body: &[u8]| {
        let mut client = TcpStream::connect(server.address).unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{}Content-Length: \
             {}\r\n\r\n",
            bearer(&token),
            body.len()
        );
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(body).unwrap();
        client
    };
    let put = |path: &MadePath| send("PUT", &path.file_target(), &path.file);
    let answer = |client: &mut TcpStream, patience: Duration| {
        client.set_read_timeout(Some(patience)).unwrap();
        let mut text = Vec::new();
        let read = client.read_to_end(&mut text);
        read.is_ok().then(|| String::from_utf8(text).unwrap())
    };
    let first: Vec<MadePath> = (0..40)
        .map(|n| MadePath::new(&format!("first-{n}")))
        .collect();
    let mut waits: Vec<TcpStream> = first.iter().map(put).collect();
    let mut held = Vec::new();
    let (mut count, mut refused) = (0, String::new());
    eventually("uploads wait for the disk", || disk.is_waited_for());
    let read = |target: &str| {
        let text = answer(&mut send("GET", target, b""), Duration::from_secs(20));
        let text = text.expect(target);
        assert!(text.starts_with("HTTP/1.1 200 "), "{target}: {text}");
    };
    read(&path.target());
    read(&path.file_target());
    eventually("an upload is refused", || {
        let mut client = put(&MadePath::new(&format!("probe-{count}")));
        count += 1;
        let found = answer(&mut client, Duration::from_secs(1));
        held.push(client);
        found.is_some_and(|text| {
            refused = text;
            true
        })
    });
    let is_refused = |text: &str| {
        text.starts_with("HTTP/1.1 503 ")
            && text.contains("\r\nRetry-After: ")
            && text.contains("the storage cannot be written at the moment")
    };
    assert!(is_refused(&refused), "{refused}");
    let line = server.process.wait_for("the storage cannot be used");
    let cause = format!("has completed no {operation} for 30 s");
    assert!(line.contains(&cause), "{line}");
    // No request that would change something waits, and reads are answered.
    for (method, target) in [
        ("PUT", path.target()),
        ("PUT", format!("/upload/log/{}", &path.store_path[11..])),
        ("POST", "/upload/push/1".to_owned()),
        ("DELETE", "/upload/pin/x".to_owned()),
    ] {
        let text = answer(&mut send(method, &target, b""), Duration::from_secs(20));
        let text = text.expect(method);
        assert!(is_refused(&text), "{method} {target}: {text}");
    }
    read(&path.target());
    read(&path.file_target());
    disk.resume();
    for client in &mut waits {
        let text = answer(client, Duration::from_secs(60)).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    }
    eventually("uploads are accepted again", || {
        let file = server.put(&token, &first[0].file_target(), &first[0].file);
        file.status == 200
    });
    server.publish(&token, &MadePath::new("after"));
}

/// Resumes a disk when it is dropped, so that no process waits for it after a test that fails.
struct Resumes<'a>(&'a VolatileDisk);

impl Drop for Resumes<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}
