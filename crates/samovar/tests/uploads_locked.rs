//! While another process has locked the database of uploads, uploads wait without delaying
//! downloads.

mod support;
mod support_uploads;

use std::net::SocketAddr;

use support::{sample, sample_store};
use support_uploads::{DatabaseLock, MadePath, Site};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nix::hash_part;

/// Number of uploads of each kind that wait. The server has at most 16 worker slots per kind of
/// work for each pair of processors.
const WAITING_COUNT: usize = 80;

/// Starts a PUT, and does not wait for the response.
fn start(address: SocketAddr, token: &str, target: &str, body: &[u8]) -> Connection {
    let mut connection = Connection::connect(address);
    connection.send(format!(
        "PUT {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    connection.send(body);
    connection
}

#[test]
fn uploads_that_wait_for_the_database_do_not_delay_downloads() {
    let site = Site::new();
    site.configure(&sample_store(), "compression = \"zstd\"\n");
    let server = site.start();
    let token = site.token(&[]);
    let published = MadePath::new("published");
    server.publish(&token, &published);
    let paths: Vec<MadePath> = (0..WAITING_COUNT)
        .map(|number| MadePath::new(&format!("path-{number}")))
        .collect();
    for path in &paths {
        let response = server.put(&token, &path.file_target(), &path.file);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let lock = DatabaseLock::take(&site);
    // Files of NARs are received by another lane than narinfos.
    let files: Vec<MadePath> = (0..16)
        .map(|number| MadePath::new(&format!("file-{number}")))
        .collect();
    let mut uploads: Vec<Connection> = files
        .iter()
        .map(|path| start(server.address, &token, &path.file_target(), &path.file))
        .chain(paths.iter().map(|path| {
            let narinfo = path.narinfo();
            start(server.address, &token, &path.target(), narinfo.as_bytes())
        }))
        .collect();
    // Before the lock is released, files are stored, but not recorded.
    eventually("all files are stored", || {
        let stored = site.files();
        files.iter().all(|file| stored.contains(&file.url()))
    });
    // Downloads of all kinds: from memory, from both databases, and of files.
    let live = server.get(&format!("/{}.narinfo", hash_part(&sample("kinds"))));
    assert_eq!(live.status, 200);
    let text = live.text();
    let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
    for _ in 0..3 {
        server.assert_serves(&published);
        assert_eq!(server.get(&format!("/{}", url.unwrap())).status, 200);
        let listing = format!("/{}.ls", hash_part(&sample("tree")));
        assert_eq!(server.get(&listing).status, 200);
    }
    let answered = uploads
        .iter_mut()
        .filter_map(|upload| (!upload.is_quiet()).then_some(()));
    assert_eq!(answered.count(), 0, "uploads ended before the downloads");
    lock.release();
    for upload in &mut uploads {
        let response = upload.next(false).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
    }
    paths.iter().for_each(|path| server.assert_serves(path));
}
