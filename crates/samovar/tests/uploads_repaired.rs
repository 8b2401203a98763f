//! `samovar fsck` finds missing and damaged files while the server runs. The next push of a stock
//! client replaces them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_protocol;
mod support_uploads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{samovar, sample, sample_store, secret_file};
use support_protocol::{Push, open_line};
use support_uploads::{MadePath, Running, Site, assert_mirrors, hash};
use testkit::eventually;
use testkit::nix::{hash_part, nix};
use testkit::process::output;

/// Runs `samovar fsck` with the site's configuration. Returns its exit code and its lines.
fn fsck(site: &Site, arguments: &[&str]) -> (i32, Vec<String>) {
    let mut command = samovar();
    command.args(["fsck", "--config"]).arg(site.config());
    let output = command.args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let code = output.status.code().unwrap();
    assert!(code < 2 && output.stderr.is_empty(), "{text}");
    (code, text.lines().map(str::to_owned).collect())
}

/// Asserts that `samovar fsck` finds no fault.
#[track_caller]
fn assert_clean(site: &Site) {
    let (code, lines) = fsck(site, &["--deep"]);
    assert!(code == 0 && lines.len() == 1, "{lines:?}");
    assert!(
        lines[0].ends_with("contents checked: 0 findings"),
        "{lines:?}"
    );
}

/// Asserts that `samovar fsck` finds exactly one fault, of this kind and subject. Returns its line.
#[track_caller]
fn finds(site: &Site, arguments: &[&str], kind: &str, subject: &str) -> String {
    let (code, lines) = fsck(site, arguments);
    assert!(code == 1 && lines.len() == 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{kind} ")), "{lines:?}");
    assert!(lines[0].contains(subject), "{lines:?}");
    lines[0].clone()
}

/// Returns the NAR file of an uploaded store path in the storage directory.
fn file_of(site: &Site, server: &Running, path: &str) -> PathBuf {
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(path)));
    assert_eq!(narinfo.status, 200, "{path}");
    let text = narinfo.text();
    let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
    site.storage().join(url.unwrap())
}

/// Pushes a path with `nix copy` from a machine that remembers no earlier push.
fn push(server: &Running, token: &str, compression: &str, path: &str) {
    let dir = tempfile::tempdir().unwrap();
    let login = format!("machine 127.0.0.1 login a password {token}\n");
    let netrc = secret_file(dir.path(), "netrc", &login);
    let to = format!("{}/upload?compression={compression}", server.url());
    let mut copy = nix("nix", dir.path());
    copy.args(["copy", "--from", &sample_store(), "--to", &to, path]);
    output(copy.args(["--option", "netrc-file"]).arg(netrc));
}

/// Copies a path from a cache with `nix copy`, which verifies its contents and signatures.
fn pull(site: &Site, from: &str, path: &str) {
    let dir = tempfile::tempdir().unwrap();
    let to = format!("local?root={}", dir.path().join("store").display());
    let mut copy = nix("nix", dir.path());
    copy.args(["copy", "--from", from, "--to", &to, path]);
    output(copy.args(["--option", "trusted-public-keys", &site.public_key]));
}

fn age(file: &Path, days: u32) {
    let mut touch = Command::new("touch");
    output(touch.arg("-d").arg(format!("{days} days ago")).arg(file));
}

/// Damages the file of a path. Asserts that `samovar fsck` finds the damage and that a push repairs
/// it.
#[track_caller]
fn mends(damage: impl Fn(&Path), arguments: &[&str], kind: &str, compression: &str) {
    let site = Site::new();
    let server = site.start();
    let (token, path) = (site.token(&[]), sample("self_reference"));
    push(&server, &token, "zstd", &path);
    assert_clean(&site);
    let file = file_of(&site, &server, &path);
    damage(&file);
    let line = finds(&site, arguments, kind, &path[11..]);
    assert!(
        line.contains(
            "; samovar fsck --deep --repair records it as lost, then push the paths again; "
        ),
        "{line}"
    );
    let target = format!("/{}.narinfo", hash_part(&path));
    let lost = site.sql("select count(*) from nar where state = 3");
    assert_eq!(lost.trim(), "0", "a check changes nothing");
    let repairing = [arguments, &["--repair"]].concat();
    let line = finds(&site, &repairing, kind, &path[11..]);
    assert!(
        line.contains("; recorded as lost, push the paths again; affects ")
            && line.matches("; ").count() == 2,
        "{line}"
    );
    // Clients see that the path is absent, both over HTTP and in the directory.
    assert_eq!(server.get(&target).status, 404);
    assert!(!site.storage().join(&target[1..]).exists());
    let line = finds(&site, &repairing, kind, &path[11..]);
    assert!(line.contains("; push the paths again; affects "), "{line}");
    push(&server, &token, compression, &path);
    assert_clean(&site);
    pull(&site, &server.url(), &path);
    server.process.terminate();
    pull(
        &site,
        &format!("file://{}", site.storage().display()),
        &path,
    );
}

#[test]
fn a_push_mends_a_deleted_file() {
    mends(
        |file| fs::remove_file(file).unwrap(),
        &[],
        "missing",
        "zstd",
    );
}

#[test]
fn a_push_mends_a_truncated_file() {
    let truncate = |file: &Path| {
        let bytes = fs::read(file).unwrap();
        fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    };
    mends(truncate, &[], "damaged", "zstd");
}

#[test]
fn a_push_mends_a_file_with_a_flipped_bit() {
    mends(flip_bit, &["--deep"], "damaged", "zstd");
}

#[test]
fn a_push_with_another_compression_mends_too() {
    mends(flip_bit, &["--deep"], "damaged", "none");
}

fn flip_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, &bytes).unwrap();
}

#[test]
fn a_file_that_returns_is_served_again() {
    let site = Site::new();
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("returns"));
    server.publish(&token, &path);
    let file = site.storage().join(path.url());
    let away = site.dir().join("away");
    fs::rename(&file, &away).unwrap();
    finds(&site, &["--repair"], "missing", &path.store_path[11..]);
    server.assert_lacks(&path);
    fs::rename(&away, &file).unwrap();
    finds(&site, &["--repair"], "lost", &path.store_path[11..]);
    let (code, lines) = fsck(&site, &["--deep", "--repair"]);
    assert!(
        code == 1 && lines[0].contains("the file is intact, recorded as such"),
        "{lines:?}"
    );
    server.assert_serves(&path);
    assert_clean(&site);
}

#[test]
fn narinfos_in_the_directory_are_rewritten_with_signatures() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let paths = ["missing", "malformed", "other"].map(MadePath::new);
    for path in &paths {
        server.publish(&token, path);
    }
    let file = |path: &MadePath| site.storage().join(&path.target()[1..]);
    let before = paths
        .each_ref()
        .map(|path| fs::read_to_string(file(path)).unwrap());
    fs::remove_file(file(&paths[0])).unwrap();
    fs::write(file(&paths[1]), "StorePath: x").unwrap();
    fs::write(
        file(&paths[2]),
        before[2].replace("NarSize: 1", "NarSize: 2"),
    )
    .unwrap();
    let without_keys = || {
        let mut command = samovar();
        command
            .args(["fsck", "--repair", "--storage"])
            .arg(site.storage());
        command.output().unwrap()
    };
    assert_eq!(without_keys().status.code(), Some(1));
    assert!(!file(&paths[0]).exists(), "a narinfo without signatures");
    for (arguments, rewritten) in [(&[][..], false), (&["--repair"], true)] {
        let (code, lines) = fsck(&site, arguments);
        assert!(code == 1 && lines.len() == 4, "{lines:?}");
        for (line, path) in lines.iter().zip(&paths) {
            assert!(line.starts_with("narinfo ") && line.contains(&path.store_path[11..]));
            assert_eq!(line.contains("rewritten"), rewritten, "{line}");
        }
    }
    for (path, text) in paths.iter().zip(before) {
        assert!(text.contains("\nSig: cache-1:"), "{text}");
        assert_eq!(fs::read_to_string(file(path)).unwrap(), text);
    }
    assert_clean(&site);
}

#[test]
fn a_narinfo_that_cannot_be_read_does_not_end_the_check() {
    let site = Site::new();
    let server = site.start();
    let path = MadePath::new("path");
    server.publish(&site.token(&[]), &path);
    let narinfo = site.storage().join(&path.target()[1..]);
    fs::remove_file(&narinfo).unwrap();
    // Not even root can read a directory as a file.
    fs::create_dir(&narinfo).unwrap();
    let line = finds(&site, &[], "narinfo", &path.target()[1..]);
    assert!(line.contains("cannot be read"), "{line}");
}

#[test]
fn orphans_are_deleted_and_their_names_are_not_used_again() {
    let site = Site::new();
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("orphan"));
    let orphan = site.storage().join(path.url());
    fs::write(&orphan, &path.file).unwrap();
    assert_clean(&site);
    age(&orphan, 1);
    assert_clean(&site);
    age(&orphan, 2);
    finds(&site, &["--repair"], "orphan", &path.url());
    // The directory has the narinfo of a path that is not imported yet.
    let narinfo = site.storage().join(&path.target()[1..]);
    fs::write(&narinfo, path.narinfo()).unwrap();
    let (_, lines) = fsck(&site, &["--delete-orphans"]);
    assert!(lines[0].starts_with("unknown "), "{lines:?}");
    assert!(
        lines[1].contains("kept, because narinfos of unknown paths"),
        "{lines:?}"
    );
    assert!(orphan.exists());
    fs::remove_file(narinfo).unwrap();
    let line = finds(&site, &["--delete-orphans"], "orphan", &path.url());
    assert!(line.ends_with("; deleted") && !orphan.exists(), "{line}");
    assert_clean(&site);
    server.publish(&token, &path);
    let narinfo = server.get(&path.target()).text();
    let url = format!("URL: nar/{}.2.nar\n", hash(&path.file));
    assert!(narinfo.contains(&url), "{narinfo}");
    assert_clean(&site);
}

#[test]
fn faults_of_the_database_are_found() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib");
    let app = MadePath::new("app")
        .referring_to(&lib.store_path)
        .compressed("zstd");
    server.publish(&token, &lib);
    server.publish(&token, &app);
    site.sql("update nar set frames = x'01' where compression = 'zstd'");
    finds(&site, &["--deep"], "frames", "app");
    finds(
        &site,
        &["--deep", "--repair"],
        "frames",
        "; rewritten; affects ",
    );
    assert_clean(&site);
    site.sql("pragma foreign_keys = off; update reference set reference = 77");
    let narinfo = site.storage().join(&app.target()[1..]);
    let before = fs::read_to_string(&narinfo).unwrap();
    let (code, lines) = fsck(&site, &["--deep", "--repair"]);
    assert!(code == 1 && lines.len() == 3, "{lines:?}");
    assert!(
        lines[0].starts_with("database ") && lines[0].contains(": app "),
        "{lines:?}"
    );
    // The narinfo in the directory still has the reference that the database lacks.
    assert!(lines[1].starts_with("narinfo "), "{lines:?}");
    assert_eq!(fs::read_to_string(&narinfo).unwrap(), before);
}

#[test]
fn json_has_a_document_for_each_finding() {
    let site = Site::new();
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("json"));
    server.publish(&token, &path);
    fs::remove_file(site.storage().join(path.url())).unwrap();
    let (code, lines) = fsck(&site, &["--json"]);
    let documents: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((code, documents.len()), (1, 2));
    assert_eq!(documents[0]["kind"], "missing");
    assert_eq!(documents[0]["object"], path.url().as_str());
    assert_eq!(documents[0]["paths"][0]["path"], &path.store_path[11..]);
    assert_eq!(documents[1]["findings"], 1);
}

#[test]
fn a_check_during_uploads_loses_nothing() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    std::thread::scope(|scope| {
        let uploads = scope.spawn(|| {
            for number in 0..40 {
                let path = MadePath::new(&format!("path-{number}"));
                server.publish(&token, &path);
                server.assert_serves(&path);
            }
        });
        while !uploads.is_finished() {
            let (_, lines) = fsck(&site, &["--deep", "--repair", "--delete-orphans"]);
            // During the check, the server writes a narinfo a moment after its row.
            let is_expected = |line: &String| line.starts_with("narinfo ");
            let last = lines.len() - 1;
            assert!(lines[..last].iter().all(is_expected), "{lines:?}");
        }
    });
    assert_clean(&site);
}

/// Publishes a path, deletes its file, and asserts that the first request for the file records the
/// loss, with one line that names the path.
fn lost_path(site: &Site, server: &Running, token: &str) -> MadePath {
    let path = MadePath::new("lost").compressed("xz");
    server.publish(token, &path);
    fs::remove_file(site.storage().join(path.url())).unwrap();
    assert_eq!(server.get(&path.file_target()).status, 404);
    server.assert_lacks(&path);
    let line = format!("error: the uploaded file {} is missing", path.url());
    let logged = server.process.wait_for(&line);
    assert!(logged.contains(&path.store_path[11..]), "{logged}");
    assert!(!site.storage().join(&path.target()[1..]).exists());
    assert_eq!(server.get(&path.file_target()).status, 404);
    assert_eq!(server.process.count(&line), 1);
    let line = finds(site, &[], "missing", &path.store_path[11..]);
    assert!(line.contains("; push the paths again"), "{line}");
    path
}

#[test]
fn a_file_that_a_request_misses_is_lost_until_it_is_uploaded_again() {
    let (site, server, token) = Site::serving();
    let path = lost_path(&site, &server, &token);
    server.publish(&token, &path);
    server.assert_serves(&path);
    assert_clean(&site);
}

/// A NAR is shared: the narinfos of all its paths return to the directory.
#[test]
fn an_upload_of_a_lost_file_returns_all_its_paths_to_the_directory() {
    let (site, server, token) = Site::serving();
    let [path, twin] = ["path", "twin"].map(|name| MadePath::new(name).containing(b"same"));
    server.publish(&token, &path);
    server.publish(&token, &twin);
    for is_pack in [false, true] {
        fs::remove_file(site.storage().join(path.url())).unwrap();
        assert_eq!(server.get(&path.file_target()).status, 404);
        eventually("the narinfos are removed", || {
            !site.files().iter().any(|file| file.ends_with(".narinfo"))
        });
        if is_pack {
            let push = Push::new(&server, &token);
            let (id, _) = push.open(&[&path]);
            push.pack(&id, &[&path]);
            push.published(&id, &[&path]);
        } else {
            server.publish(&token, &path);
        }
        assert_mirrors(&site, &[path.clone(), twin.clone()]);
    }
}

#[test]
fn an_upload_in_another_compression_replaces_a_lost_file() {
    let (site, server, token) = Site::serving();
    let path = lost_path(&site, &server, &token);
    let other = MadePath::new("lost").compressed("zstd");
    assert_eq!(
        (&other.store_path, &other.nar),
        (&path.store_path, &path.nar)
    );
    server.publish(&token, &other);
    server.assert_serves(&other);
}

/// No request has missed the files before the uploads.
#[test]
fn uploads_notice_missing_files_and_replace_them() {
    let (site, server, token) = Site::serving();
    let protocol = Push::new(&server, &token);
    let known = MadePath::new("known").compressed("xz");
    server.publish(&token, &known);
    let remove = |path: &MadePath| fs::remove_file(site.storage().join(path.url())).unwrap();
    remove(&known);
    // Another path with the same NAR, and the path itself.
    let other = MadePath::new("other").containing(b"known");
    assert_eq!(other.nar, known.nar);
    let (id, answers) = protocol.open(&[&other, &known]);
    assert_eq!(answers, ["need", "need"]);
    protocol.pack(&id, &[&other]);
    protocol.published(&id, &[&other, &known]);
    let narinfos = [&known, &other].map(|path| server.get(&path.target()));
    for narinfo in narinfos {
        assert_eq!(narinfo.status, 200);
        let text = narinfo.text();
        let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
        assert_eq!(server.get(&format!("/{}", url.unwrap())).status, 200);
    }

    // The narinfo in another compression comes without a look-up before it.
    let xz = MadePath::new("unasked").compressed("xz");
    server.publish(&token, &xz);
    remove(&xz);
    let zstd = MadePath::new("unasked").compressed("zstd");
    server.publish(&token, &zstd);
    server.assert_serves(&zstd);

    // A narinfo whose file has gone is refused.
    let gone = MadePath::new("gone");
    server.put(&token, &gone.file_target(), &gone.file);
    remove(&gone);
    let refused = server.put(&token, &gone.target(), gone.narinfo());
    assert_eq!(refused.status, 409, "{}", refused.text());
    server.publish(&token, &gone);
    server.assert_serves(&gone);
    assert_clean(&site);
}

#[test]
fn nothing_is_lost_if_the_directory_is_moved_away() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("moved");
    server.publish(&token, &path);
    let storage = site.storage();
    for part in [storage.clone(), storage.join("nar")] {
        let away = site.dir().join("away");
        fs::rename(&part, &away).unwrap();
        if part != storage {
            // An empty mount point.
            fs::create_dir(&part).unwrap();
        }
        for target in [path.file_target(), path.target()] {
            assert_eq!(server.get(&target).status, 503, "{target}");
        }
        assert_eq!(server.get("/readyz").status, 503);
        if part != storage {
            fs::remove_dir(&part).unwrap();
        }
        fs::rename(&away, &part).unwrap();
        assert_eq!(server.get("/readyz").status, 200);
        server.assert_serves(&path);
    }
    assert_eq!(site.sql("select state from nar").trim(), "1");
    server.process.wait_for("was moved or unmounted");
    assert_clean(&site);
}

/// What is uploaded meanwhile would be gone when the server is started again.
#[test]
fn nothing_is_acknowledged_after_the_directory_was_replaced() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("before");
    server.publish(&token, &path);
    let storage = site.storage();
    let parts = [
        ("moved", storage.clone()),
        ("nars", storage.join("nar")),
        ("database", storage.join(".samovar/db.sqlite")),
    ];
    for (name, part) in parts {
        let begun = MadePath::new(&format!("{name}-begun"));
        let file = server.put(&token, &begun.file_target(), &begun.file);
        assert_eq!(file.status, 200);
        let (away, copy) = (site.dir().join("away"), site.dir().join("copy"));
        output(Command::new("cp").arg("-a").args([&part, &copy]));
        fs::rename(&part, &away).unwrap();
        fs::rename(&copy, &part).unwrap();
        let later = MadePath::new(name);
        let uploads = [
            (later.file_target(), later.file.clone()),
            (
                format!("/log/{}", &later.store_path[11..]),
                b"built".to_vec(),
            ),
            (path.target(), path.narinfo().into_bytes()),
            (begun.target(), begun.narinfo().into_bytes()),
        ];
        for (target, body) in uploads {
            let response = server.put(&token, &target, body);
            // Logs are in another directory than NARs.
            let is_there = name == "nars" && target.starts_with("/log/");
            let status = if is_there { 200 } else { 503 };
            assert_eq!(
                response.status,
                status,
                "{name} {target}: {}",
                response.text()
            );
        }
        let open = Push::new(&server, &token).send("POST", "open", open_line(&later));
        assert!(name == "nars" || open.status == 503, "{name}");
        assert_eq!(server.get("/readyz").status, 503);
        // A log that is not there may be in the other directory.
        if name == "moved" {
            let log = format!("/log/{}", &path.store_path[11..]);
            assert_eq!(server.get(&log).status, 503);
        }
        output(Command::new("rm").arg("-r").arg(&part));
        fs::rename(&away, &part).unwrap();
        for path in [&later, &begun] {
            server.publish(&token, path);
            server.assert_serves(path);
        }
        server.assert_serves(&path);
    }
    assert_clean(&site);
}

/// Some tables have no row numbers.
#[test]
fn every_check_runs_whatever_the_others_find() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    server.publish(&token, &path);
    server.process.terminate();
    fs::remove_file(site.storage().join(path.url())).unwrap();
    site.sql(
        "pragma foreign_keys = off; insert into sent values (77, 1, 1, 0); \
         insert into outer_reference values (77, 'x'); update cache set file_bytes = 5, \
             extra_bytes = 6;",
    );
    let (code, lines) = fsck(&site, &["--repair"]);
    assert_eq!(code, 1);
    for part in [
        "a row of the table sent needs a missing row of token",
        "a row of the table outer_reference needs a missing row of path",
        "the size of the cache default is recorded as 5 bytes, but its files have",
        "recorded as 6 bytes, but its logs, realisations and narinfos have 4096",
        "the file is missing; recorded as lost",
    ] {
        assert!(
            lines.iter().any(|line| line.contains(part)),
            "{part}: {lines:?}"
        );
    }
    site.sql("delete from sent where token_id = 77; delete from outer_reference");
    let (_, lines) = fsck(&site, &[]);
    assert!(
        lines.len() == 2 && lines[0].contains("; push the paths again"),
        "{lines:?}"
    );
}
