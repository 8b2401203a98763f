//! `samovar import` publishes the paths of other caches after the same checks as for an upload.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use samovar_nix::StoreDir;
use samovar_storage::{DATABASE, Storage, backup};
use support::{samovar, sample, sample_store};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::nix::{hash_part, nix};
use testkit::process::{fails, finish, output};

/// Returns a `samovar import` command with the site's configuration.
fn import(site: &Site, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command.args(["import", "--config"]).arg(site.config());
    command.args(arguments);
    command
}

/// Runs an import in which some paths fail. Returns its output.
#[track_caller]
fn import_part(site: &Site, arguments: &[&str]) -> String {
    let output = import(site, arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

/// Writes the closures of sample paths to a file cache with `nix copy`.
fn write_directory(to: &Path, compression: &str, paths: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let to = format!("file://{}?compression={compression}", to.display());
    let mut copy = nix("nix", home.path());
    copy.args(["copy", "--from", &sample_store(), "--to", &to]);
    output(copy.args(paths));
}

/// Copies paths from a cache into a new store, which verifies their contents and signatures.
#[track_caller]
fn pull(site: &Site, from: &str, paths: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let to = format!("local?root={}", home.path().join("store").display());
    let mut copy = nix("nix", home.path());
    copy.args(["copy", "--from", from, "--to", &to]).args(paths);
    output(copy.args(["--option", "trusted-public-keys", &site.public_key]));
    for path in paths {
        assert!(
            home.path()
                .join("store")
                .join(&path[1..])
                .symlink_metadata()
                .is_ok()
        );
    }
}

/// Returns the names and inode numbers of the NAR files in a directory.
fn nars(directory: &Path) -> BTreeSet<(String, u64)> {
    let entries = fs::read_dir(directory.join("nar")).unwrap();
    let entries = entries.map(|entry| entry.unwrap());
    let named = |entry: fs::DirEntry| {
        let inode = entry.metadata().unwrap().ino();
        (entry.file_name().into_string().unwrap(), inode)
    };
    entries.map(named).collect()
}

fn inodes(directory: &Path) -> BTreeSet<u64> {
    nars(directory)
        .into_iter()
        .map(|(_, inode)| inode)
        .collect()
}

/// Asserts that `samovar fsck` finds no fault in the storage.
#[track_caller]
fn assert_clean(site: &Site) {
    let mut fsck = samovar();
    output(fsck.args(["fsck", "--deep", "--config"]).arg(site.config()));
}

#[test]
fn a_directory_becomes_a_storage_without_copying() {
    for compression in ["xz", "none", "zstd", "gzip"] {
        let (first, second) = (sample("self_reference"), sample("built"));
        let (site, paths) = (Site::new(), [&*first, &*second]);
        write_directory(&site.storage(), compression, &paths);
        let before = nars(&site.storage());
        let text = output(&mut import(&site, &[]));
        assert!(text.ends_with(" 0 known, 0 not imported\n"), "{text}");
        assert_eq!(nars(&site.storage()), before, "{compression}");
        let server = site.start();
        pull(&site, &server.url(), &paths);
        server.process.terminate();
        // The narinfos in the directory now have the signatures of the cache.
        pull(
            &site,
            &format!("file://{}", site.storage().display()),
            &paths,
        );
        assert_clean(&site);
        let text = output(&mut import(&site, &[]));
        assert!(text.starts_with("0 paths imported, "), "{text}");
    }
}

#[test]
fn files_of_another_directory_are_copied_or_linked() {
    for link in [&[][..], &["--link"]] {
        let (site, path) = (Site::new(), sample("self_reference"));
        let directory = site.dir().join("other");
        write_directory(&directory, "xz", &[&path]);
        // Remove the file hash from the narinfos: some servers do not state it.
        for entry in fs::read_dir(&directory).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|suffix| suffix == "narinfo") {
                let text = fs::read_to_string(&file).unwrap();
                let lines = text.lines().filter(|line| !line.starts_with("File"));
                fs::write(
                    file,
                    lines.map(|line| format!("{line}\n")).collect::<String>(),
                )
                .unwrap();
            }
        }
        let from = format!("file://{}", directory.display());
        let done = finish(&mut import(
            &site,
            &[&["--from", &from, &path], link].concat(),
        ));
        assert!(done.status.success(), "{done:?}");
        let notes = String::from_utf8(done.stderr).unwrap();
        let note = format!("{:?} is a new storage; if you meant", site.storage());
        assert!(notes.contains(&note), "{notes}");
        // The directory has other files.
        let mut wrong = samovar();
        wrong.args(["import", "--storage"]).arg(site.dir());
        let text = fails(wrong.args(["--from", &from, &path]));
        assert!(text.contains("is not a storage"), "{text}");
        assert!(!site.dir().join(".samovar").exists());
        let shared = inodes(&directory)
            .intersection(&inodes(&site.storage()))
            .count();
        let expected = if link.is_empty() {
            0
        } else {
            inodes(&directory).len()
        };
        assert_eq!(shared, expected);
        let server = site.start();
        pull(&site, &server.url(), &[&path]);
        assert_clean(&site);
    }
}

#[test]
fn what_is_wrong_is_named_and_not_imported() {
    let site = Site::new();
    let (directory, path) = (site.dir().join("other"), sample("self_reference"));
    write_directory(&directory, "none", &[&path]);
    let made = |name: &str| MadePath::new(name);
    let write = |path: &MadePath, file: &[u8]| {
        fs::write(directory.join(&path.target()[1..]), path.narinfo()).unwrap();
        fs::write(directory.join(path.url()), file).unwrap();
    };
    let (damaged, lost, fine) = (made("damaged"), made("lost"), made("fine"));
    let above = made("above").referring_to(&damaged.store_path);
    let outer = made("outer").referring_to(&made("nowhere").store_path);
    write(&damaged, b"damaged");
    write(&lost, b"");
    fs::remove_file(directory.join(lost.url())).unwrap();
    for path in [&fine, &above, &outer] {
        write(path, &path.file);
    }
    let outside = made("outside");
    let narinfo = outside.narinfo_with("URL", "../secret");
    fs::write(directory.join(&outside.target()[1..]), narinfo).unwrap();
    let malformed = made("malformed");
    fs::write(directory.join(&malformed.target()[1..]), "x").unwrap();
    let from = directory.to_str().unwrap();
    let text = import_part(&site, &["--from", from]);
    for (path, reason) in [
        (&damaged, "is damaged (the content is not a NAR"),
        (&lost, "cannot read nar/"),
        (&above, "was not imported"),
        (&outer, "neither the cache nor the Nix store has it"),
        (&outside, "is not a file below the directory"),
        (&malformed, "malformed"),
    ] {
        let line = text.lines().find(|line| {
            let named =
                ["", "/nix/store/"].map(|dir| format!("not imported {dir}{}", path.hash_part()));
            named.iter().any(|start| line.starts_with(start)) && line.contains(reason)
        });
        let line = line.unwrap_or_else(|| panic!("{reason}: {text}"));
        // Advice for clients that upload is of no use to the operator.
        assert!(
            !line.contains("upload") && !line.contains("nix-store"),
            "{line}"
        );
    }
    assert!(text.ends_with(", 0 known, 6 not imported\n"), "{text}");
    let server = site.start();
    pull(&site, &server.url(), &[&path]);
    server.assert_serves(&fine);
    for path in [&damaged, &lost, &above, &outer] {
        server.assert_lacks(path);
    }
    server.process.terminate();
    // After the repair of the files, the next import publishes the remaining paths.
    write(&damaged, &damaged.file);
    write(&lost, &lost.file);
    let text = import_part(&site, &["--from", from]);
    assert!(text.contains("\n3 paths imported, "), "{text}");
    let server = site.start();
    for path in [&damaged, &lost, &above, &fine] {
        server.assert_serves(path);
    }
    assert_clean(&site);
}

#[test]
fn closures_are_imported_over_http() {
    let (first, second) = (Site::new(), Site::new());
    first.configure(&sample_store(), "");
    let (path, other) = (sample("self_reference"), sample("built"));
    let server = first.start();
    let url = server.url();
    assert!(fails(&mut import(&second, &["--from", &url])).contains("name those to import"));
    let text = import_part(
        &second,
        &["--from", &url, &MadePath::new("absent").store_path],
    );
    assert!(
        text.contains("the source does not have this path"),
        "{text}"
    );
    let keys = ["--trusted-public-keys", &second.public_key];
    let text = import_part(&second, &[&["--from", &url, &path], &keys[..]].concat());
    assert!(
        text.starts_with("not imported ") && text.contains("no trusted key"),
        "{text}"
    );
    assert!(text.contains("\n0 paths imported, 0 known, "), "{text}");
    let keys = ["--trusted-public-keys", &first.public_key];
    output(&mut import(
        &second,
        &[&["--from", &url, &path], &keys[..]].concat(),
    ));
    output(&mut import(&second, &["--from", &url, &path, &other]));
    server.process.terminate();
    let server = second.start();
    pull(&second, &server.url(), &[&path, &other]);
    assert_clean(&second);
    // Import from a running server, whose uploaded files are compressed.
    let third = Site::new();
    write_directory(&third.storage(), "xz", &[&path]);
    output(&mut import(&third, &[]));
    let (server, fourth) = (third.start(), Site::new());
    output(&mut import(&fourth, &["--from", &server.url(), &path]));
    let names = |site: &Site| nars(&site.storage()).into_iter().map(|(name, _)| name);
    assert!(names(&fourth).eq(names(&third)));
}

#[test]
fn a_lost_database_is_made_again() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib").compressed("zstd");
    // The second reference is in the Nix store of the server, from which it is deleted later.
    let app = MadePath::new("app")
        .referring_to(&lib.store_path)
        .referring_to(&sample("built"));
    server.publish(&token, &lib);
    server.publish(&token, &app);
    let pin = |arguments: &[&str]| {
        let mut command = samovar();
        command
            .args(["pin", arguments[0], "--storage"])
            .arg(site.storage());
        output(command.args(&arguments[1..]))
    };
    pin(&["add", "main", &app.store_path]);
    let pins = pin(&["list"]);
    let narinfo = |server: &Running, path: &MadePath| server.get(&path.target()).text();
    let before = [narinfo(&server, &lib), narinfo(&server, &app)];
    server.process.terminate();
    site.configure_empty("");
    assert!(fails(&mut import(&site, &["--rebuild"])).contains("the database has paths"));
    let lose_database = || {
        for suffix in ["", "-wal", "-shm"] {
            fs::remove_file(site.storage().join(format!("{DATABASE}{suffix}"))).ok();
        }
    };
    let back_up = || {
        let storage = Storage::open(&site.storage(), &StoreDir::default()).unwrap();
        backup::write(&storage).unwrap();
    };
    let kept = site.dir().join("database");
    site.sql(&format!(".backup '{}'", kept.display()));
    let backup = |day: &str| {
        site.storage()
            .join(format!(".samovar/backup/{day}.jsonl.zst"))
    };
    lose_database();
    fs::remove_dir_all(site.storage().join(".samovar/backup")).ok();
    let refused = fails(samovar().args(site.arguments()));
    assert!(refused.contains("samovar import --rebuild"), "{refused}");
    let files = site.files();
    let mut rebuild = import(&site, &["--rebuild"]);
    let done = testkit::process::finish(&mut rebuild);
    let (text, advice) = (
        String::from_utf8(done.stdout),
        String::from_utf8(done.stderr),
    );
    assert_eq!(text.unwrap(), "2 paths imported, 0 known, 0 not imported\n");
    assert!(advice.unwrap().contains("create the tokens and pins again"));
    assert_eq!(site.files(), files);
    // With a backup, the rebuilt database has the token and the pin again.
    lose_database();
    fs::rename(&kept, site.storage().join(DATABASE)).unwrap();
    fs::create_dir_all(site.storage().join(".samovar/backup")).unwrap();
    for day in 1..=7 {
        fs::write(backup(&format!("2001-01-0{day}")), "").unwrap();
    }
    back_up();
    assert!(!backup("2001-01-01").exists() && backup("2001-01-02").exists());
    lose_database();
    output(&mut import(&site, &["--rebuild"]));
    assert_eq!(pin(&["list"]), pins);
    let server = site.start();
    assert_eq!([narinfo(&server, &lib), narinfo(&server, &app)], before);
    server.publish(&token, &MadePath::new("later"));
    server.assert_serves(&lib);
    server.assert_serves(&app);
    assert_clean(&site);
}

#[test]
fn a_running_server_serves_imported_paths_after_a_reload() {
    let site = Site::new();
    let (directory, path) = (site.dir().join("other"), sample("self_reference"));
    write_directory(&directory, "zstd", &[&path]);
    let server = site.start();
    let target = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(server.get(&target).status, 404);
    let done = import(&site, &["--from", directory.to_str().unwrap()])
        .output()
        .unwrap();
    let advice = String::from_utf8(done.stderr).unwrap();
    assert!(
        done.status.success() && advice.contains("reload it (HUP)"),
        "{advice}"
    );
    // Paths of a cache that the configuration does not have would not be served.
    let mut other = import(&site, &["--cache", "typo", "--from"]);
    let text = fails(other.arg(&directory));
    assert!(text.contains("has no cache \"typo\""), "{text}");
    server.process.signal("HUP");
    eventually("the path is served", || server.get(&target).status == 200);
    pull(&site, &server.url(), &[&path]);
    // The storage is intact after the import beside a running server.
    assert_clean(&site);
}

#[test]
fn references_come_from_the_next_source() {
    // Some caches lack the paths of cache.nixos.org, because their clients do not push them.
    let (site, next) = (Site::new(), Site::new());
    let lib = MadePath::new("lib").compressed("zstd");
    let app = MadePath::new("app").referring_to(&lib.store_path);
    let directory = site.dir().join("other");
    fs::create_dir_all(directory.join("nar")).unwrap();
    fs::write(directory.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    fs::write(directory.join(&app.target()[1..]), app.narinfo()).unwrap();
    fs::write(directory.join(app.url()), &app.file).unwrap();
    let server = next.start();
    server.publish(&next.token(&[]), &lib);
    let (first, second) = (directory.to_str().unwrap(), server.url());
    let text = import_part(&site, &["--from", first, &app.store_path]);
    assert!(text.contains(&lib.store_path[11..]), "{text}");
    let text = output(&mut import(
        &site,
        &["--from", first, "--from", &second, &app.store_path],
    ));
    assert!(text.starts_with("2 paths imported, "), "{text}");
    server.process.terminate();
    let server = site.start();
    server.assert_serves(&lib);
    server.assert_serves(&app);
    assert_clean(&site);
}

/// The directory has no narinfos of this cache.
#[test]
fn a_rebuilt_database_has_the_paths_of_all_caches() {
    let site = Site::new();
    site.configure_empty("[caches.a]\nprefix = \"/\"\n[caches.b]\nprefix = \"/b\"\n");
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib");
    let app = MadePath::new("app").referring_to(&lib.store_path);
    for path in [&lib, &app] {
        for (target, body) in [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ] {
            let response = server.put(&token, &format!("/b{target}"), body);
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    let narinfo = |server: &Running, path: &MadePath| {
        let response = server.get(&format!("/b{}", path.target()));
        assert_eq!(response.status, 200);
        response.text()
    };
    let before = [narinfo(&server, &lib), narinfo(&server, &app)];
    let of_a = MadePath::new("of-a");
    server.publish(&token, &of_a);
    let damaged = MadePath::new("damaged");
    for (target, body) in [
        (damaged.file_target(), damaged.file.clone()),
        (damaged.target(), damaged.narinfo().into_bytes()),
    ] {
        let response = server.put(&token, &format!("/b{target}"), body);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    server.process.terminate();
    // A path that cannot be read does not prevent the backup of all others.
    site.sql("update path set name = '' where name = 'damaged'");
    // The backup is written soon after the start.
    let server = site.start();
    testkit::eventually("the backup has the paths", || {
        let list = fs::read_dir(site.storage().join(".samovar/backup"));
        let mut files = list.into_iter().flatten().flatten();
        files.any(|file| {
            let text = std::process::Command::new("zstd")
                .arg("-dc")
                .arg(file.path())
                .output();
            let text = String::from_utf8_lossy(&text.unwrap().stdout).into_owned();
            text.contains(&app.store_path)
        })
    });
    server
        .process
        .wait_for("back up the database of the storage");
    server.process.terminate();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(site.storage().join(format!("{DATABASE}{suffix}"))).ok();
    }
    // Without the server's configuration, the command knows the names of the caches all the same.
    let mut rebuild = samovar();
    rebuild.args(["import", "--rebuild", "--storage"]);
    let text = output(rebuild.arg(site.storage()));
    assert_eq!(text, "3 paths imported, 0 known, 0 not imported\n");
    let server = site.start();
    server.assert_serves(&of_a);
    let target = format!("/b{}", of_a.target());
    assert_eq!(server.get(&target).status, 404);
    assert_eq!([narinfo(&server, &lib), narinfo(&server, &app)], before);
}

/// Opening a pipe that nobody writes would never end.
#[test]
fn pipes_in_place_of_files_are_named_and_not_imported() {
    for arguments in [&["--from"][..], &["--link", "--from"], &[]] {
        let site = Site::new();
        let directory = match arguments.is_empty() {
            true => site.storage(),
            false => site.dir().join("other"),
        };
        fs::create_dir_all(directory.join("nar")).unwrap();
        fs::write(directory.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
        let pipe = |name: &str| {
            let mut command = Command::new("mkfifo");
            output(command.arg(directory.join(name)));
        };
        let [file, nar, narinfo] = ["file", "nar", "narinfo"].map(MadePath::new);
        for path in [&file, &nar] {
            fs::write(directory.join(&path.target()[1..]), path.narinfo()).unwrap();
        }
        fs::write(directory.join(file.url()), &file.file).unwrap();
        pipe(&nar.url());
        pipe(&narinfo.target()[1..]);
        let mut arguments = arguments.to_vec();
        let from = directory.to_str().unwrap().to_owned();
        arguments.extend((!arguments.is_empty()).then_some(&*from));
        let text = import_part(&site, &arguments);
        let lines = text.matches("it is not a regular file").count();
        assert!(lines == 2 && text.contains("1 path imported"), "{text}");
    }
}
