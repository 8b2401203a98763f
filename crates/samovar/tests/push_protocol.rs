//! The push protocol publishes many paths in a few requests. Each request may be repeated, and an
//! upload continues after the server was killed.

mod support;
mod support_protocol;
mod support_uploads;

use std::fs;
use std::iter;

use support_protocol::{Push, lines_of, pack};
use support_uploads::{MadePath, Running, Site, assert_refused, hash};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::limit;
use testkit::procfs;
use testkit::random::SplitMix64;

/// Kills the server with SIGKILL, as after a crash, and starts it again.
fn restart(site: &Site, mut server: Running) -> Running {
    server.process.signal("KILL");
    server.process.wait();
    site.start()
}

/// Returns three paths. The second refers to the first, and the third to both.
fn closure() -> [MadePath; 3] {
    let first = MadePath::new("first").compressed("zstd");
    let second = MadePath::new("second")
        .compressed("xz")
        .referring_to(&first.store_path);
    let third = MadePath::new("third")
        .referring_to(&first.store_path)
        .referring_to(&second.store_path);
    [first, second, third]
}

/// Returns a path whose file has `len` bytes that cannot be compressed.
fn noise(name: &str, len: usize) -> MadePath {
    let mut random = SplitMix64::new(len as u64);
    let content: Vec<u8> = iter::repeat_with(|| random.next().to_le_bytes())
        .flatten()
        .take(len)
        .collect();
    MadePath::new(name).containing(&content)
}

fn unfinished(site: &Site) -> usize {
    let files = site.files();
    let tmp = files
        .iter()
        .filter(|file| file.starts_with(".samovar/tmp/"));
    tmp.count()
}

#[test]
fn a_closure_is_pushed_in_three_requests() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let paths = closure();
    let paths: Vec<&MadePath> = paths.iter().collect();
    let (id, needs) = push.open(&paths);
    assert_eq!(needs, ["need"; 3]);
    let kept: Vec<String> = paths
        .iter()
        .map(|path| format!("kept {}", hash(&path.nar)))
        .collect();
    assert_eq!(push.pack(&id, &paths), kept);
    for path in &paths {
        server.assert_lacks(path);
    }
    push.published(&id, &paths);
    for path in &paths {
        server.assert_serves(path);
    }
    eventually("0 files are unfinished", || unfinished(&site) == 0);
    let (_, needs) = push.open(&paths);
    assert_eq!(needs, ["have"; 3]);
    let (_, needs) = push.open(&[]);
    assert_eq!(needs, [""; 0]);
    let end = push.send("DELETE", &id, "");
    assert_eq!((end.status, end.body.len()), (200, 0));
    assert_eq!(push.send("DELETE", &id, "").status, 200);
    assert_eq!(push.publish(&id, &paths).status, 404);
}

#[test]
fn every_request_may_be_repeated() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let paths = closure();
    let paths: Vec<&MadePath> = paths.iter().collect();
    let (id, _) = push.open(&paths);
    let once = push.pack(&id, &paths);
    assert_eq!(push.pack(&id, &paths), once);
    let (other, needs) = push.open(&paths);
    assert_ne!(other, id);
    assert_eq!(needs, ["link"; 3]);
    push.published(&other, &paths);
    push.published(&id, &paths);
    push.published(&id, &[]);
    assert_eq!(push.pack(&id, &paths), once);
    assert_eq!(push.pack(&id, &[paths[0], paths[0]]).len(), 2);
    for path in &paths {
        server.assert_serves(path);
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let site = Site::new();
    let mut server = site.start();
    let token = site.token(&[]);
    let paths = closure();
    let paths: Vec<&MadePath> = paths.iter().collect();
    let (id, _) = Push::new(&server, &token).open(&paths);
    server = restart(&site, server);
    Push::new(&server, &token).pack(&id, &paths);
    server = restart(&site, server);
    Push::new(&server, &token).published(&id, &paths);
    server = restart(&site, server);
    for path in &paths {
        server.assert_serves(path);
    }
}

/// A power cut before the response to a part may leave a file with the name of the part, but
/// without all of its bytes.
#[test]
fn a_part_that_is_cut_short_is_missing() {
    let (site, server, token) = Site::serving();
    let path = noise("large", 200_000);
    let nar = &*hash(&path.nar);
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[&path]);
    let parts: Vec<&[u8]> = path.file.chunks(100_000).collect();
    for (number, part) in (1..).zip(&parts) {
        assert_eq!(push.part(&id, nar, number, part).status, 200);
    }
    let files = site.files();
    let is_second = |file: &&String| file.contains("/push-") && file.contains("-2-100000-");
    let second = site
        .storage()
        .join(files.iter().find(is_second).expect("a part"));
    for len in [0, 99_999] {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&second)
            .expect("opens the part");
        file.set_len(len).expect("cuts the part");
        let listed = push.parts(&id, nar);
        assert!(listed.iter().all(|(number, _)| *number != 2), "{listed:?}");
        assert_refused(&push.join(&id, nar, 3), 409, &["part 2 is missing"]);
    }
    assert_eq!(push.part(&id, nar, 2, parts[1]).status, 200);
    assert_eq!(push.join(&id, nar, 3).status, 200);
    push.published(&id, &[&path]);
    server.assert_serves(&path);
}

#[test]
fn a_large_file_is_sent_in_parts_and_continues_after_kills() {
    const LEN: usize = 100_000;
    let site = Site::new();
    let mut server = site.start();
    let token = site.token(&[]);
    let path = noise("large", 5 * LEN - 1000);
    let nar = &*hash(&path.nar);
    let parts: Vec<&[u8]> = path.file.chunks(LEN).collect();
    assert_eq!(parts.len(), 5);
    let (id, _) = Push::new(&server, &token).open(&[&path]);
    // Upload the parts out of order, and one of them twice.
    for number in [5, 1, 3, 1] {
        let response = Push::new(&server, &token).part(&id, nar, number, parts[number - 1]);
        assert_eq!((response.status, response.text()), (200, String::new()));
        server = restart(&site, server);
    }
    let push = Push::new(&server, &token);
    let last_len = parts[4].len();
    let stored = [(1, LEN), (3, LEN), (5, last_len)];
    assert_eq!(push.parts(&id, nar), stored);
    let refused = push.join(&id, nar, 5);
    assert_eq!(refused.status, 409);
    assert!(refused.text().starts_with("part 2 is missing"));
    for number in [2, 4] {
        assert_eq!(push.part(&id, nar, number, parts[number - 1]).status, 200);
    }
    assert_eq!(push.parts(&id, nar).len(), 5);
    for _ in 0..2 {
        let response = push.join(&id, nar, 5);
        assert_eq!((response.status, response.text()), (200, String::new()));
        eventually("0 files are unfinished", || unfinished(&site) == 0);
    }
    assert_eq!(push.open(&[&path]).1, ["link"]);
    push.published(&id, &[&path]);
    let server = restart(&site, server);
    server.assert_serves(&path);
}

#[test]
fn a_pack_that_a_kill_cuts_off_leaves_nothing_behind_that_hinders() {
    let site = Site::new();
    let mut server = site.start();
    let token = site.token(&[]);
    let paths = closure();
    // This body is longer than those that the server receives before it handles the request.
    let large = noise("large", 200_000);
    let paths: Vec<&MadePath> = paths.iter().chain([&large]).collect();
    let (id, _) = Push::new(&server, &token).open(&paths);
    let body = pack(&paths);
    // Close the connection during the last record, while the server stores the files of the others.
    for cut in [10, 1000, 150_000] {
        let mut connection = Connection::connect(server.address);
        connection.send(format!(
            "PUT /upload/push/1/{id}/pack HTTP/1.1\r\nHost: a\r\n\
             Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ));
        connection.send(&body[..body.len() - cut]);
        eventually("the first files are stored", || {
            let files = site.files();
            files.iter().any(|file| file.starts_with("nar/"))
        });
        server = restart(&site, server);
        // The server may just be writing a backup.
        eventually("0 files are unfinished", || unfinished(&site) == 0);
        for path in &paths {
            server.assert_lacks(path);
        }
    }
    let push = Push::new(&server, &token);
    assert_eq!(push.open(&paths).1, ["need"; 4]);
    push.pack(&id, &paths);
    push.published(&id, &paths);
    for path in paths {
        server.assert_serves(path);
    }
}

#[test]
fn a_join_goes_on_without_its_client() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let path = MadePath::new("path").compressed("zstd");
    let nar = &*hash(&path.nar);
    let (id, _) = push.open(&[&path]);
    assert_eq!(push.part(&id, nar, 1, &path.file).status, 200);
    let mut connection = Connection::connect(server.address);
    connection.send(format!(
        "POST /upload/push/1/{id}/join/{nar}?parts=1&compression=zstd HTTP/1.1\r\nHost: a\r\n\
         Authorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
    ));
    drop(connection);
    eventually("the parts are joined", || push.parts(&id, nar).is_empty());
    push.published(&id, &[&path]);
    server.assert_serves(&path);
}

#[test]
fn the_end_of_a_push_removes_its_parts_only() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let path = MadePath::new("path");
    let nar = &*hash(&path.nar);
    let (first, _) = push.open(&[&path]);
    let (second, _) = push.open(&[&path]);
    for id in [&first, &second] {
        assert_eq!(push.part(id, nar, 1, &path.file).status, 200);
    }
    eventually("2 files are unfinished", || unfinished(&site) == 2);
    assert_eq!(push.send("DELETE", &first, "").status, 200);
    eventually("1 files are unfinished", || unfinished(&site) == 1);
    assert_eq!(push.parts(&second, nar), [(1, path.file.len())]);
}

#[test]
fn a_nar_of_others_is_linked_only_by_those_who_may_read_it() {
    let site = Site::new();
    site.configure_empty("[caches.a]\n[caches.b]\n");
    let server = site.start();
    let (first, second, third) = (site.token(&[]), site.token(&[]), site.token(&[]));
    let in_cache = |token, cache| Push {
        cache,
        ..Push::new(&server, token)
    };
    let path = MadePath::new("path");
    let push = in_cache(&first, "/a");
    let (id, _) = push.open(&[&path]);
    push.pack(&id, &[&path]);
    // The file was sent with the first token, which may use it in any cache.
    assert_eq!(in_cache(&first, "/b").open(&[&path]).1, ["link"]);
    assert_eq!(in_cache(&second, "/a").open(&[&path]).1, ["need"]);
    // The second token may not publish a file of which it knows only the hash.
    let other = in_cache(&second, "/a");
    let (id_of_other, _) = other.open(&[]);
    let refused = other.publish(&id_of_other, &[&path]);
    assert_eq!(refused.status, 409);
    assert_eq!(lines_of(&refused), [format!("need {}", path.hash_part())]);
    push.published(&id, &[&path]);
    // After its publication in the first cache, the second token may use the file there, but not
    // elsewhere.
    let twin = MadePath {
        store_path: MadePath::new("twin").store_path,
        ..path.clone()
    };
    assert_eq!(other.open(&[&path, &twin]).1, ["have", "link"]);
    assert_eq!(in_cache(&third, "/b").open(&[&twin]).1, ["need"]);
    other.published(&id_of_other, &[&twin]);
}

#[test]
fn a_pack_of_a_thousand_nars_is_stored_with_bounded_memory() {
    // This is more than one transaction records.
    const COUNT: usize = 1100;
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let paths: Vec<MadePath> = (0..COUNT)
        .map(|at| {
            let path = MadePath::new(&format!("path-{at}"));
            match at {
                0 => path,
                _ => path.referring_to(&MadePath::new(&format!("path-{}", at - 1)).store_path),
            }
        })
        .collect();
    let large = noise("large", 12 << 20);
    let paths: Vec<&MadePath> = paths.iter().chain([&large]).collect();
    let memory = || procfs::memory(server.process.pid(), "status", "VmHWM").unwrap();
    let (id, needs) = push.open(&paths);
    assert_eq!(needs, vec!["need"; COUNT + 1]);
    let idle = memory();
    let kept = push.pack(&id, &paths);
    assert!(kept.iter().all(|line| line.starts_with("kept ")));
    push.published(&id, &paths);
    let used = memory() - idle;
    limit::memory_at_most("memory for a push", used, 24 << 20);
    assert_eq!(push.open(&paths).1, vec!["have"; COUNT + 1]);
    for path in [paths[0], paths[COUNT - 1], &large] {
        server.assert_serves(path);
    }
}

#[test]
fn publishing_is_all_or_none() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let push = Push::new(&server, &token);
    let [first, second, third] = closure();
    let (id, _) = push.open(&[]);
    push.pack(&id, &[&first, &second, &third]);
    // Within a request, a path must come after its references.
    let refused = push.publish(&id, &[&second, &first, &third]);
    assert_eq!(refused.status, 409);
    let missing = |reference: &MadePath, path: &MadePath| {
        format!("missing {} {}", reference.hash_part(), path.hash_part())
    };
    assert_eq!(lines_of(&refused), [missing(&first, &second)]);
    for path in [&first, &second, &third] {
        server.assert_lacks(path);
    }
    let refused = push.publish(&id, &[&third, &second]);
    let expected = [
        missing(&first, &third),
        missing(&second, &third),
        missing(&first, &second),
    ];
    let mut found = lines_of(&refused);
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    push.published(&id, &[&first]);
    push.published(&id, &[&second, &third]);
    // A published path can be published again, even with another NAR. The first NAR stays.
    let other = MadePath::new("first").containing(b"other");
    push.pack(&id, &[&other]);
    push.published(&id, &[&other]);
    server.assert_serves(&first);
}

#[test]
fn clients_that_push_the_same_paths_at_the_same_time_all_succeed() {
    let site = Site::new();
    let server = site.start();
    let paths = closure();
    let paths: Vec<&MadePath> = paths.iter().collect();
    let tokens: Vec<String> = (0..4).map(|_| site.token(&[])).collect();
    std::thread::scope(|scope| {
        for token in &tokens {
            let (server, paths) = (&server, &paths);
            scope.spawn(move || {
                let push = Push::new(server, token);
                let (id, _) = push.open(paths);
                let nar = hash(&paths[0].nar);
                assert_eq!(push.part(&id, &nar, 1, &paths[0].file).status, 200);
                let target = format!("{id}/join/{nar}?parts=1&compression=zstd");
                eventually("the file is joined", || {
                    push.send("POST", &target, "").status == 200
                });
                push.pack(&id, paths);
                push.published(&id, paths);
            });
        }
    });
    for path in paths {
        server.assert_serves(path);
    }
}
