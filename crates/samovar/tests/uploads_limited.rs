//! Uploads of many or slow clients use bounded memory. They do not delay uploads with other tokens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_protocol;
mod support_uploads;

use std::net::SocketAddr;

use samovar_protocol::recipe::Writer;
use support_protocol::Push;
use support_uploads::{DatabaseLock, MadePath, Site, hash, nar_of_file, send};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::limit;
use testkit::procfs;

const MIB: u64 = 1 << 20;

/// Maximum number of uploads of one token: `UPLOADS_MAX` in progress, `WAITING_MAX` waiting.
const UPLOADS_MAX: usize = 64;
const WAITING_MAX: usize = 128;

/// Starts the upload of a file of `len` bytes, but sends only `body`, its beginning.
fn start(
    address: SocketAddr,
    token: &str,
    agent: &str,
    target: &str,
    len: usize,
    body: &[u8],
) -> Connection {
    let mut connection = Connection::connect(address);
    connection.send(format!(
        "PUT {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\n\
         Authorization: Bearer {token}\r\nContent-Length: {len}\r\n\r\n"
    ));
    connection.send(body);
    connection
}

/// Returns the beginning of a zstd file with the largest window. Its content has `len` bytes and is
/// the beginning of a NAR of zeros.
fn zstd_with_large_window(len: u64) -> Vec<u8> {
    const BLOCK_LEN: u32 = 128 << 10;
    let block = |kind: u32, len: u32| (kind << 1 | len << 3).to_le_bytes()[..3].to_vec();
    let mut nar = nar_of_file(b"");
    // Keep the NAR up to the field with the length of the contents.
    nar.truncate(nar.len() - 24);
    nar.extend((1_u64 << 32).to_le_bytes());
    // Add a skippable frame, which keeps the content below 1,000 times the length of the file.
    let padding = len / 500;
    let mut file = 0x184d_2a50_u32.to_le_bytes().to_vec();
    file.extend(u32::try_from(padding).unwrap().to_le_bytes());
    file.resize(file.len() + usize::try_from(padding).unwrap(), 0);
    // Frame header: magic number, no optional fields, and a window of 2^(10 + 17) bytes.
    file.extend(b"\x28\xb5\x2f\xfd\x00\x88");
    file.extend(block(0, u32::try_from(nar.len()).unwrap()));
    file.extend(nar);
    for _ in 0..len / u64::from(BLOCK_LEN) {
        file.extend(block(1, BLOCK_LEN));
        file.push(0);
    }
    file
}

#[test]
fn many_uploads_with_the_largest_window_use_bounded_memory() {
    let site = Site::new();
    site.configure_empty("connections.stall-time = 0\n");
    let server = site.start();
    let memory = |name| procfs::memory(server.process.pid(), "status", name).unwrap();
    let idle = memory("VmHWM");
    let file = zstd_with_large_window(100 * MIB);
    // Each upload fills 100 MiB of its window, then its client sends nothing.
    let mut uploads = Vec::new();
    for at in 0..8 {
        let token = site.token(&["--name", &format!("of-{}", at / 2)]);
        let target = format!("/nar/{}.nar.zst", hash(&[at]));
        let len = file.len() + 1;
        uploads.push(start(server.address, &token, "curl", &target, len, &file));
    }
    eventually("two uploads have filled their windows", || {
        memory("VmRSS") > idle + 200 * MIB
    });
    // Uncompressed uploads have no window, so they need no memory of the budget.
    let other = site.token(&["--name", "other"]);
    server.publish(&other, &MadePath::new("uncompressed"));
    assert!(uploads.iter_mut().all(Connection::is_quiet));
    drop(uploads);
    // This upload is served after all that were waiting before it.
    server.publish(&other, &MadePath::new("compressed").compressed("zstd"));
    let peak = memory("VmHWM");
    limit::memory_at_most("memory for uploads", peak - idle, 320 * MIB);
}

#[test]
fn slow_uploads_with_one_token_do_not_delay_other_tokens() {
    let site = Site::new();
    site.configure_empty("connections.stall-time = 0\n");
    let server = site.start();
    let token = site.token(&["--name", "slow"]);
    let path = MadePath::new("path");
    let agents = ["curl/8.0", "curl/8.0 Nix/2.8"];
    let mut uploads: Vec<Connection> = (0..UPLOADS_MAX + WAITING_MAX + 4)
        .map(|at| {
            let body = &path.file[..1];
            let (target, len) = (path.file_target(), path.file.len() + (1 << 20));
            start(server.address, &token, agents[at % 2], &target, len, body)
        })
        .collect();
    let refused = |uploads: &mut [Connection]| -> Vec<usize> {
        let ended = uploads.iter_mut().enumerate();
        let ended = ended.filter_map(|(at, upload)| (!upload.is_quiet()).then_some(at));
        ended.collect()
    };
    eventually("those past the limit are refused", || {
        refused(&mut uploads).len() >= 4
    });
    let fast = site.token(&["--name", "fast"]);
    for (at, byte) in path.file.iter().enumerate().skip(1).take(20) {
        let path = MadePath::new(&format!("path-{at}"));
        server.publish(&fast, &path.compressed("zstd"));
        for upload in &mut uploads[..10] {
            upload.send([*byte]);
        }
    }
    let ended = refused(&mut uploads);
    assert_eq!(ended.len(), 4, "{ended:?}");
    for at in ended {
        let response = uploads[at].next(false).unwrap();
        // Nix before 2.33 would repeat the request with an empty body after a 503.
        assert_eq!(response.status, [503, 422][at % 2], "{}", response.text());
        assert!(response.text().contains("too many uploads"));
    }
    // The next upload with this token gets a free slot.
    drop(uploads);
    server.publish(&token, &path);
}

/// Returns a zstd file whose content is a NAR with a file of `count` times `chunk`.
fn zstd_of_chunks(chunk: &[u8], count: usize) -> Vec<u8> {
    let compressed = |content: &[u8]| {
        let mut path = MadePath::new("chunk");
        path.nar = content.to_vec();
        path.compressed("zstd").file
    };
    let mut start = nar_of_file(b"");
    // Two closing parentheses, which are 16 bytes each, end a NAR.
    let end = start.split_off(start.len() - 16);
    let len = start.len() - 8;
    let content_len = (chunk.len() * count) as u64;
    assert_eq!(content_len % 8, 0, "no padding");
    start[len..].copy_from_slice(&content_len.to_le_bytes());
    let frame = compressed(chunk);
    let frames = std::iter::repeat_n(frame, count).flatten();
    let mut file = compressed(&start);
    file.extend(frames);
    file.extend(compressed(&end));
    file
}

#[test]
fn a_long_upload_does_not_delay_those_of_other_tokens() {
    let site = Site::new();
    site.configure_empty("");
    let server = site.start();
    let [large, small] = ["large", "small"].map(|name| site.token(&["--name", name]));
    // Verifying 2 GiB takes seconds. The file has a hundredth of that, and is sent at once.
    let mut chunk = vec![b'x'; 4 << 20];
    for (at, byte) in chunk[..40_000].iter_mut().enumerate() {
        *byte = u8::try_from((at.wrapping_mul(2_654_435_761) >> 13) & 0xff).unwrap();
    }
    let file = zstd_of_chunks(&chunk, 512);
    let target = format!("/nar/{}.nar.zst", hash(&file));
    let mut upload = start(server.address, &large, "curl", &target, file.len(), &file);
    let paths: Vec<MadePath> = (0..3)
        .map(|at| MadePath::new(&format!("small-{at}")).compressed("zstd"))
        .collect();
    // This one needs turns, because it is not small.
    let medium = MadePath::new("medium")
        .containing(&chunk)
        .compressed("zstd");
    for path in paths.iter().chain([&medium]) {
        server.publish(&small, path);
        assert!(upload.is_quiet(), "{} waited", path.store_path);
    }
    let response = upload.next(false).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Returns a recipe that copies the whole base.
fn copy_of(len: usize) -> Vec<u8> {
    let compressor = zstd::Encoder::new(Vec::new(), 3).unwrap();
    let mut writer = Writer::new(compressor).unwrap();
    writer.copy(0, len as u64).unwrap();
    writer.finish().unwrap().finish().unwrap()
}

#[test]
fn a_long_assembly_does_not_delay_those_of_other_tokens() {
    const COUNT: usize = 384;
    let site = Site::new();
    site.configure_empty("");
    let server = site.start();
    let [large, small] = ["large", "small"].map(|name| site.token(&["--name", name]));
    let mut chunk = vec![b'x'; 1 << 20];
    for (at, byte) in chunk[..40_000].iter_mut().enumerate() {
        *byte = u8::try_from((at.wrapping_mul(2_654_435_761) >> 13) & 0xff).unwrap();
    }
    let base = nar_of_file(&chunk.repeat(COUNT));
    let file = zstd_of_chunks(&chunk, COUNT);
    let sent = server.put(&large, &format!("/nar/{}.nar.zst", hash(&file)), &file);
    assert_eq!(sent.status, 200, "{}", sent.text());
    // This base is not small, so that its assembly needs turns.
    let other = MadePath::new("other")
        .containing(&chunk.repeat(4))
        .compressed("zstd");
    server.publish(&small, &other);
    let assemble = |token: &str, base: &[u8]| {
        let push = Push::new(&server, token);
        let (id, _) = push.open(&[&MadePath::new("new")]);
        let target = format!("{id}/assemble?base={}", hash(base));
        let response = push.send("POST", &target, copy_of(base.len()));
        assert_eq!(response.status, 200, "{}", response.text());
    };
    let is_begun = || {
        let files = site.files();
        files.iter().any(|file| file.starts_with(".samovar/tmp/"))
    };
    std::thread::scope(|scope| {
        let long = scope.spawn(|| assemble(&large, &base));
        eventually("the assembly has begun", is_begun);
        // One is enough: it would wait for the end of the long one. A busy machine may not get to
        // more before that.
        assemble(&small, &other.nar);
        assert!(!long.is_finished(), "the short assembly waited");
    });
}

#[test]
fn an_upload_waits_while_another_process_writes_to_the_database() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("path");
    let lock = DatabaseLock::take(&site);
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| {
            // Nix before 2.33 would hang after a 503.
            let fields =
                format!("Authorization: Bearer {token}\r\nUser-Agent: curl/7.88.1 Nix/2.8.0\r\n");
            send(
                server.address,
                "PUT",
                &path.file_target(),
                &fields,
                &path.file,
            )
        });
        // The database has no row for the file yet.
        eventually("the file is stored", || site.files().contains(&path.url()));
        assert_eq!(server.get(&path.file_target()).status, 404);
        lock.release();
        let response = upload.join().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
    });
    server.publish(&token, &path);
}
