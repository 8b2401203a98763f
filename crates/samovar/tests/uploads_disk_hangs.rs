//! While the disk with the uploaded files hangs, the server answers requests about its Nix store.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_mount;
mod support_uploads;

use std::ffi::OsStr;
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
use support_uploads::{MadePath, Site};
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
