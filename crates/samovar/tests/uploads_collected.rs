//! The collector deletes unused uploaded paths with their files. Pinned paths and their closures
//! stay.

mod support;
mod support_uploads;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use samovar_storage::DATABASE;
use support::{samovar, sample, sample_store, secret_file};
use support_uploads::{MadePath, Running, Site, hash, send};
use testkit::nix::{hash_part, nix};
use testkit::process::{fails, output};

/// Runs `samovar gc` on the site's storage, with a retention of 30 days. Returns its output.
fn gc(site: &Site, arguments: &[&str]) -> String {
    let mut command = samovar();
    command.args(["gc", "--uploads-retention", "30d", "--storage"]);
    output(command.arg(site.storage()).args(arguments))
}

fn pin(site: &Site, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command.arg("pin").arg(arguments[0]).arg("--storage");
    command.arg(site.storage()).args(&arguments[1..]);
    command
}

/// Subtracts a number of days from all times in the storage's database.
fn age(site: &Site, days: u32) {
    let seconds = days * 86_400;
    // This value marks a condemnation that a killed collector has not confirmed yet.
    let unconfirmed = i64::MAX;
    let sql = format!(
        "begin immediate; \
         update path set used_at = used_at - {seconds}, registered_at = registered_at - {seconds}; \
         update path set condemned_at = condemned_at - {seconds} \
             where condemned_at <> {unconfirmed}; \
         update nar set created_at = created_at - {seconds}, \
             state_at = iif(state_at = {unconfirmed}, state_at, state_at - {seconds}); \
         update sent set sent_at = sent_at - {seconds}; \
         update garbage set done_at = done_at - {seconds}; \
         update pin set expires_at = expires_at - {seconds}; commit;"
    );
    site.sql(&sql);
}

/// Condemns and deletes all unused paths with their files. A day passes between the runs. Paths
/// that are pinned or were used within 30 days stay.
fn collect(site: &Site) {
    for _ in 0..3 {
        gc(site, &["--force"]);
        age(site, 1);
    }
    gc(site, &["--force"]);
}

fn status(server: &Running, path: &str) -> u16 {
    server.get(&format!("/{}.narinfo", hash_part(path))).status
}

#[test]
fn a_pinned_closure_stays_and_others_are_deleted_with_their_files() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let dir = tempfile::tempdir().expect("makes a directory");
    let login = format!("machine 127.0.0.1 login a password {token}\n");
    let netrc = secret_file(dir.path(), "netrc", &login);
    let nix = |arguments: &[&str]| {
        let mut command = nix("nix", dir.path());
        command
            .args(arguments)
            .args(["--option", "substituters", ""]);
        command.args(["--option", "netrc-file"]).arg(&netrc);
        command
    };
    let (pinned, unpinned) = (sample("self_reference"), sample("kinds"));
    let to = format!("{}/upload?compression=zstd", server.url());
    let from = sample_store();
    output(&mut nix(&[
        "copy", "--from", &from, "--to", &to, &pinned, &unpinned,
    ]));
    let text = output(&mut pin(&site, &["add", "main", &pinned]));
    assert!(text.starts_with("main generation 1 is "), "{text}");
    age(&site, 40);
    let before = site.files();
    let plan = gc(&site, &["--dry-run"]);
    assert!(
        plan.contains(&unpinned[11..]) && !plan.contains(&pinned[11..]),
        "{plan}"
    );
    assert_eq!(site.files(), before);
    assert_eq!(gc(&site, &["--dry-run"]), plan, "a dry run changes nothing");
    collect(&site);
    assert_eq!(status(&server, &unpinned), 404);
    assert!(site.files().len() < before.len());
    let narinfo = format!("{}.narinfo", hash_part(&unpinned));
    assert!(before.contains(&narinfo) && !site.files().contains(&narinfo));
    let local = format!("local?root={}", dir.path().join("store").display());
    let mut pull = nix(&["copy", "--from", &server.url(), "--to", &local, &pinned]);
    output(pull.args(["--option", "trusted-public-keys", &site.public_key]));
    // The client can push the path again. Its file gets another name.
    output(&mut nix(&[
        "copy",
        "--refresh",
        "--from",
        &from,
        "--to",
        &to,
        &unpinned,
    ]));
    let narinfo = server.get(&format!("/{narinfo}")).text();
    assert!(narinfo.contains(".2.nar.zst\n"), "{narinfo}");
    output(&mut pin(&site, &["remove", "main"]));
    server.process.terminate();
}

#[test]
fn a_request_revives_a_condemned_path() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let (used, downloaded, unused) = (
        MadePath::new("used"),
        MadePath::new("downloaded"),
        MadePath::new("unused"),
    );
    for path in [&used, &downloaded, &unused] {
        server.publish(&token, path);
    }
    age(&site, 40);
    let summary = gc(&site, &[]);
    assert!(
        summary.starts_with("3 paths condemned, 0 deleted"),
        "{summary}"
    );
    assert_eq!(server.get(&used.target()).status, 200);
    assert_eq!(server.get(&downloaded.file_target()).status, 200);
    // A condemned path is deleted after an hour. Leave a minute for the commands in between.
    let condemned = "update path set condemned_at = condemned_at - 3540";
    site.sql(condemned);
    let summary = gc(&site, &[]);
    assert!(
        summary.starts_with("0 paths condemned, 0 deleted"),
        "{summary}"
    );
    let condemned = "update path set condemned_at = condemned_at - 3600";
    site.sql(condemned);
    gc(&site, &[]);
    server.assert_serves(&used);
    server.assert_serves(&downloaded);
    server.assert_lacks(&unused);
    // The path can be published again, although the server still has it in its index.
    server.publish(&token, &unused);
    let narinfo = server.get(&unused.target());
    assert_eq!(narinfo.status, 200);
}

#[test]
fn a_file_without_a_path_is_deleted_after_a_day() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("loose");
    assert_eq!(
        server.put(&token, &path.file_target(), &path.file).status,
        200
    );
    for _ in 0..2 {
        assert!(gc(&site, &[]).contains("0 files condemned, 0 deleted"));
    }
    age(&site, 1);
    assert!(gc(&site, &[]).contains("1 file condemned, 0 deleted"));
    // A request of the client that sent the file revives the file.
    assert_eq!(
        server.request("HEAD", &path.file_target(), &token).status,
        200
    );
    age(&site, 1);
    assert!(gc(&site, &[]).contains("1 file condemned, 0 deleted"));
    age(&site, 1);
    assert!(gc(&site, &[]).contains("0 files condemned, 1 deleted"));
    assert!(site.files().iter().all(|file| !file.starts_with("nar/")));
    assert_eq!(
        server.put(&token, &path.target(), path.narinfo()).status,
        409
    );
    server.publish(&token, &path);
    assert!(server.get(&path.target()).text().contains(".2.nar\n"));
    let file = format!("/nar/{}.2.nar", hash(&path.file));
    assert_eq!(server.get(&file).body, path.file);
}

#[test]
fn pins_have_generations_and_expire() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let paths: Vec<MadePath> = ["one", "two", "three"].map(MadePath::new).into();
    let missing = fails(&mut pin(&site, &["add", "main", &paths[0].store_path]));
    assert!(missing.contains("upload it first"), "{missing}");
    for path in &paths {
        server.publish(&token, path);
        output(&mut pin(
            &site,
            &["add", "main", &path.store_path, "--keep", "2"],
        ));
    }
    output(&mut pin(
        &site,
        &["add", "short", &paths[0].store_path, "--expires", "1d"],
    ));
    let list = output(&mut pin(&site, &["list"]));
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(list.contains(&paths[2].store_path), "{list}");
    age(&site, 40);
    collect(&site);
    server.assert_lacks(&paths[0]);
    server.assert_serves(&paths[1]);
    server.assert_serves(&paths[2]);
    assert!(output(&mut pin(&site, &["remove", "main"])).starts_with("2 "));
    assert!(fails(&mut pin(&site, &["remove", "main"])).contains("no pin"));
}

#[test]
fn a_quota_refuses_what_exceeds_it() {
    let site = Site::new();
    let (first, second) = (MadePath::new("first"), MadePath::new("second"));
    // Each path counts 4 KiB besides its file.
    let quota = first.file.len() + second.file.len() + 2 * 4096 - 1;
    site.configure_empty(&format!("uploads.quota = {quota}\n"));
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &first);
    let refused = server.put(&token, &second.file_target(), &second.file);
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(
        refused.text().contains("of its quota of"),
        "{}",
        refused.text()
    );
    server.assert_lacks(&second);
    server.process.terminate();
    site.configure_empty(&format!("uploads.quota = {}\n", quota + 1));
    let server = site.start();
    server.publish(&token, &second);
    let third = MadePath::new("third");
    let early = send(
        server.address,
        "PUT",
        &third.file_target(),
        &format!("Authorization: Bearer {token}\r\n"),
        &third.file,
    );
    assert_eq!(early.status, 413);
}

#[test]
fn collecting_during_uploads_loses_nothing() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    std::thread::scope(|scope| {
        let uploads = scope.spawn(|| {
            for number in 0..60 {
                let lib = MadePath::new(&format!("lib-{}", number % 7));
                let app = MadePath::new(&format!("app-{number}")).referring_to(&lib.store_path);
                server.publish(&token, &lib);
                server.publish(&token, &app);
                assert_eq!(server.get(&app.target()).status, 200);
            }
        });
        while !uploads.is_finished() {
            gc(&site, &[]);
        }
    });
    for number in 0..60 {
        server.assert_serves(&MadePath::new(&format!("lib-{}", number % 7)));
    }
}

#[test]
fn a_realisation_is_deleted_with_its_output_and_revives_it() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("output");
    server.publish(&token, &path);
    let id = format!("sha256:{}!out", "1".repeat(64));
    let target = format!("/realisations/{id}.doi");
    let document = format!(
        "{{\"id\":\"{id}\",\"outPath\":\"{}\"}}",
        &path.store_path[11..]
    );
    assert_eq!(server.put(&token, &target, &document).status, 200);
    age(&site, 40);
    let summary = gc(&site, &[]);
    assert!(summary.starts_with("1 path condemned"), "{summary}");
    // Serving the realisation is a use of the path, so it revives the path.
    assert_eq!(server.get(&target).status, 200);
    age(&site, 1);
    let summary = gc(&site, &[]);
    assert!(summary.contains("0 deleted;"), "{summary}");
    age(&site, 40);
    collect(&site);
    assert_eq!(server.get(&path.target()).status, 404);
    assert_eq!(server.get(&target).status, 404);
    assert!(site.files().is_empty(), "{:?}", site.files());
    // Both the path and the realisation can be uploaded again.
    assert_eq!(server.put(&token, &target, &document).status, 409);
    server.publish(&token, &path);
    assert_eq!(server.put(&token, &target, &document).status, 200);
    assert_eq!(server.get(&target).status, 200);
}

#[test]
fn above_the_retention_size_the_longest_unused_go_first() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let paths = ["oldest", "older", "recent"].map(MadePath::new);
    for path in &paths {
        server.publish(&token, path);
    }
    age(&site, 2);
    site.sql("update path set used_at = used_at - 172800 where name = 'oldest'");
    site.sql("update path set used_at = used_at - 86400 where name = 'older'");
    let sizes = paths.each_ref().map(|path| path.file.len());
    let total: usize = sizes.iter().sum();
    let condemned_at = |size: usize| {
        let size = size.to_string();
        let plan = gc(&site, &["--dry-run", "--uploads-retention-size", &size]);
        let names = paths.each_ref().map(|path| &path.store_path[11..]);
        let lines: Vec<&str> = plan.lines().collect();
        names.map(|name| {
            let line = lines.iter().find(|line| line.ends_with(name));
            line.is_some_and(|line| line.contains(" size "))
        })
    };
    assert_eq!(condemned_at(total), [false, false, false]);
    assert_eq!(condemned_at(total - 1), [true, false, false]);
    assert_eq!(condemned_at(total - sizes[0]), [true, false, false]);
    assert_eq!(condemned_at(total - sizes[0] - 1), [true, true, false]);
}

#[test]
fn rules_for_names_shorten_or_extend_the_retention() {
    let site = Site::new();
    site.configure_empty(
        "uploads.retention = \"90d\"\n\
         uploads.retention-rules = [\"keep-*=forever\", \"*-debug=30d\"]\n",
    );
    let server = site.start();
    let token = site.token(&[]);
    let [needed, debug, kept, app, old] =
        ["needed-debug", "app-debug", "keep-debug", "app", "old"].map(MadePath::new);
    let app = app.referring_to(&needed.store_path);
    for path in [&needed, &debug, &kept, &app, &old] {
        server.publish(&token, path);
    }
    age(&site, 31);
    site.sql("update path set used_at = used_at - 5184000 where name in ('old', 'keep-debug')");
    let gc = |arguments: &[&str]| {
        let mut command = samovar();
        command.args(["gc", "--config"]).arg(site.config());
        output(command.args(arguments))
    };
    let plan = gc(&["--dry-run"]);
    let reason = |path: &MadePath| {
        let line = plan
            .lines()
            .find(|line| line.ends_with(&path.store_path[11..]));
        line.map(|line| {
            line.split_whitespace()
                .nth(3)
                .unwrap_or_default()
                .to_owned()
        })
    };
    assert_eq!(reason(&debug).as_deref(), Some("*-debug"), "{plan}");
    assert_eq!(reason(&old).as_deref(), Some("unused"), "{plan}");
    for path in [&needed, &kept, &app] {
        assert_eq!(reason(path), None, "{plan}");
    }
    for _ in 0..2 {
        gc(&[]);
        age(&site, 0);
        site.sql("update path set condemned_at = condemned_at - 3600");
    }
    let statuses =
        [&needed, &debug, &kept, &app, &old].map(|path| server.get(&path.target()).status);
    assert_eq!(statuses, [200, 404, 200, 200, 404]);
}

#[test]
fn a_collector_that_is_killed_loses_nothing() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib");
    let app = MadePath::new("app").referring_to(&lib.store_path);
    let unused: Vec<MadePath> = (0..40)
        .map(|number| MadePath::new(&format!("unused-{number}")))
        .collect();
    for path in [&lib, &app].into_iter().chain(&unused) {
        server.publish(&token, path);
    }
    output(&mut pin(&site, &["add", "main", &app.store_path]));
    let narinfos = || {
        let files = site.files().into_iter();
        files.filter(|file| file.ends_with(".narinfo")).count()
    };
    let nars = || {
        let files = site.files().into_iter();
        files.filter(|file| file.starts_with("nar/")).count()
    };
    let condemned = || site.sql("select count(*) from path where condemned_at is not null");
    let effects: [&dyn Fn() -> bool; 3] =
        [&|| condemned() != "0", &|| narinfos() < 42, &|| nars() < 42];
    for effect in effects {
        age(&site, 40);
        let mut command = samovar();
        command.args(["gc", "--force", "--uploads-retention", "30d", "--storage"]);
        command.arg(site.storage()).stdout(Stdio::null());
        let mut collector = command.spawn().expect("starts");
        while !effect() && collector.try_wait().expect("waits").is_none() {}
        // Ignore whether the process has already ended: the outcome is that of a kill after its
        // last step.
        collector.kill().expect("is killed");
        collector.wait().expect("has ended");
        server.assert_serves(&lib);
        server.assert_serves(&app);
        // Every path that is still visible has its NAR.
        for path in &unused {
            let narinfo = site.sql(&format!(
                "select count(*) from path where name = '{}'",
                &path.store_path[44..]
            ));
            let file = site.storage().join(path.url());
            assert!(narinfo == "0" || file.exists(), "{}", path.store_path);
        }
    }
    collect(&site);
    server.assert_serves(&lib);
    server.assert_serves(&app);
    assert_eq!((narinfos(), nars()), (2, 2));
}

#[test]
fn gc_shows_its_own_options_and_what_waits() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &MadePath::new("path"));
    age(&site, 40);
    let summary = gc(&site, &[]);
    let waits = "; waiting for deletion: 1 path";
    assert!(summary.trim_end().ends_with(waits), "{summary}");
    let plan = gc(&site, &["--dry-run"]);
    assert!(plan.contains("; already condemned: 1 path"), "{plan}");
    let help = output(samovar().args(["gc", "--help"]));
    for (option, is_shown) in [
        ("--dry-run", true),
        ("--config ", true),
        ("--storage ", true),
        ("--uploads-retention ", true),
        ("--uploads-retention-size ", true),
        ("--listen", false),
        ("--nar-cache", false),
        ("--uploads-quota", false),
    ] {
        assert_eq!(help.contains(option), is_shown, "{option}: {help}");
    }
}

#[test]
fn a_pin_takes_paths_of_the_store_directory_of_its_cache() {
    let site = Site::new();
    let server = site.start();
    let path = MadePath::new("path");
    server.publish(&site.token(&[]), &path);
    server.process.terminate();
    site.sql("update cache set store_dir = '/other/store'");
    let full = path.store_path.replace("/nix/store", "/other/store");
    let text = output(&mut pin(&site, &["add", "main", &full]));
    assert_eq!(text, format!("main generation 1 is {full}\n"));
    let text = fails(&mut pin(&site, &["add", "main", &path.store_path]));
    assert!(text.contains("/other/store"), "{text}");
}

/// Runs `samovar gc` as [`gc`]. Asserts that it refuses, without a change. Returns the message.
#[track_caller]
fn gc_refuses(site: &Site) -> String {
    let before = site.sql("select id, condemned_at from path; select id, state from nar");
    let mut command = samovar();
    command.args(["gc", "--uploads-retention", "30d", "--storage"]);
    let text = fails(command.arg(site.storage()));
    let after = site.sql("select id, condemned_at from path; select id, state from nar");
    assert_eq!(after, before);
    text
}

#[test]
fn a_run_that_would_delete_most_paths_waits_for_the_operator() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    for number in 0..17 {
        server.publish(&token, &MadePath::new(&format!("path-{number}")));
    }
    age(&site, 40);
    let text = gc_refuses(&site);
    assert!(
        text.contains("17 of 17 paths that were kept would be deleted")
            && text.contains("samovar gc --force"),
        "{text}"
    );
    let text = gc(&site, &["--force"]);
    assert!(text.starts_with("17 paths condemned"), "{text}");
    age(&site, 1);
    let text = gc(&site, &[]);
    assert!(text.contains("17 deleted"), "{text}");
}

#[test]
fn a_run_long_after_the_last_one_waits_for_the_operator() {
    let site = Site::new();
    let server = site.start();
    server.publish(&site.token(&[]), &MadePath::new("path"));
    gc(&site, &[]);
    // As if the clock had jumped: the last use of the path is earlier, too.
    age(&site, 40);
    site.sql("update meta set value = value - 40 * 86400 where key = 'collected-at'");
    let text = gc_refuses(&site);
    assert!(
        text.contains("the last run of the collector was 40 days ago; check the clock"),
        "{text}"
    );
    let text = gc(&site, &["--force"]);
    assert!(text.starts_with("1 path condemned"), "{text}");
}

/// SQLite finds a damaged page only when it reads the page. Pins that it cannot see keep nothing.
#[test]
fn damage_of_the_pins_stops_the_collector_and_the_server() {
    let site = Site::new();
    let server = site.start();
    let path = MadePath::new("pinned");
    server.publish(&site.token(&[]), &path);
    output(&mut pin(&site, &["add", "main", &path.store_path]));
    server.process.terminate();
    age(&site, 40);
    let page = site.sql("select rootpage from sqlite_master where name = 'pin'");
    let page: u64 = page.trim().parse().expect("is a number");
    site.sql("pragma wal_checkpoint(truncate)");
    let database = site.storage().join(DATABASE);
    let file = File::options().write(true).open(&database).expect("opens");
    // The number of cells of the page.
    let offset = (page - 1) * 4096 + 3;
    file.write_all_at(&[0, 0], offset).expect("writes");
    let text = gc_refuses(&site);
    assert!(text.contains("database is damaged: "), "{text}");
    let text = fails(samovar().args(site.arguments()));
    assert!(text.contains("database is damaged: "), "{text}");
}

/// Nix from 2.35 on sends all NARs first. It may ask for a file, or send it again, a day later.
#[test]
fn a_file_that_is_asked_for_or_sent_again_is_kept_for_another_day() {
    let (site, server, token) = Site::serving();
    let [asked, sent, forgotten] = ["asked", "sent", "forgotten"].map(MadePath::new);
    for path in [&asked, &sent, &forgotten] {
        let response = server.put(&token, &path.file_target(), &path.file);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    age(&site, 2);
    let target = format!("/upload{}", asked.file_target());
    assert_eq!(server.request("HEAD", &target, &token).status, 200);
    assert_eq!(
        server.put(&token, &sent.file_target(), &sent.file).status,
        200
    );
    let text = gc(&site, &[]);
    assert!(text.contains("1 file condemned"), "{text}");
    for (path, status) in [(&asked, 200), (&sent, 200), (&forgotten, 200)] {
        // Also revives the condemned file.
        let response = server.put(&token, &path.target(), path.narinfo());
        assert_eq!(response.status, status, "{}", response.text());
    }
}
