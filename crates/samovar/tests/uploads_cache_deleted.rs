//! A deleted cache is hidden at once and completely, even if the deletion is killed. The collector
//! later deletes the files that no other cache uses.

mod support;
mod support_uploads;

use std::process::{Command, Stdio};

use support::{samovar, sample, sample_store, secret_file};
use support_uploads::{MadePath, Running, Site, upload};
use testkit::nix::{hash_part, nix};
use testkit::process::{fails, output};

const CACHES: &str = "[caches.default]\nprefix = \"/\"\n[caches.nightly]\n\
                      uploads.quota = \"1 GiB\"\nuploads.retention = \"40d\"\n";

fn cache(site: &Site, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command.arg("cache").arg(arguments[0]).arg("--storage");
    command.arg(site.storage()).args(&arguments[1..]);
    command.stdin(Stdio::null());
    command
}

fn list(site: &Site) -> serde_json::Value {
    let text = output(&mut cache(site, &["list", "--json"]));
    let mut document: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
    document["caches"].take()
}

/// Runs the collector until it has deleted all files that no path uses.
fn collect(site: &Site) {
    for _ in 0..3 {
        site.sql("update nar set created_at = 0, state_at = 0; update sent set sent_at = 0;");
        output(samovar().args(["gc", "--storage"]).arg(site.storage()));
    }
}

fn publish(server: &Running, prefix: &str, token: &str, path: &MadePath) -> u16 {
    let put = |target: String, body: &[u8]| {
        upload(server.address, token, &format!("{prefix}{target}"), body).status
    };
    assert_eq!(put(path.file_target(), &path.file), 200);
    put(path.target(), path.narinfo().as_bytes())
}

#[test]
fn a_deleted_cache_is_not_served_and_its_own_files_are_freed() {
    let site = Site::new();
    site.configure_empty(CACHES);
    let server = site.start();
    let all = site.token(&[]);
    let nightly = site.token(&["--name", "nightly-ci", "--cache", "nightly"]);
    let dir = tempfile::tempdir().expect("makes a directory");
    let login = format!("machine 127.0.0.1 login a password {all}\n");
    let netrc = secret_file(dir.path(), "netrc", &login);
    let nix_copy = |to: &str, path: &str| {
        let to = format!("{}{to}/upload?compression=zstd", server.url());
        let mut command = nix("nix", dir.path());
        command.args([
            "copy",
            "--refresh",
            "--from",
            &sample_store(),
            "--to",
            &to,
            path,
        ]);
        command.args(["--option", "netrc-file"]).arg(&netrc);
        command
    };
    let (shared, own) = (sample("self_reference"), sample("kinds"));
    output(&mut nix_copy("", &shared));
    for path in [&shared, &own] {
        output(&mut nix_copy("/nightly", path));
    }
    let mut pin = samovar();
    pin.args(["pin", "add", "--cache", "nightly", "main", &own]);
    output(pin.arg("--storage").arg(site.storage()));

    let caches = list(&site);
    assert_eq!(caches[1]["name"], "nightly", "{caches}");
    assert_eq!(
        (&caches[1]["pins"], &caches[1]["tokens"]),
        (&1.into(), &1.into())
    );
    let mut named = samovar();
    named.args(["cache", "list", "--config"]).arg(site.config());
    let text = output(&mut named);
    let line = text.lines().find(|line| line.starts_with("nightly"));
    let line = line.expect("nightly is listed");
    assert!(
        line.contains("1.0 GiB") && line.contains("40 days"),
        "{text}"
    );
    assert!(line.ends_with("yes"), "{text}");

    let refused = fails(&mut cache(&site, &["delete", "nightly"]));
    assert!(refused.contains("--yes"), "{refused}");
    let path = format!("/nightly/{}.narinfo", hash_part(&own));
    let narinfo = server.get(&path).text();
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    let file = url.expect("the path is served").to_owned();
    assert_eq!(server.get(&format!("/nightly/{file}")).status, 200);

    let text = output(&mut cache(&site, &["delete", "--yes", "nightly"]));
    assert!(text.contains("1 pin; 1 token revoked"), "{text}");
    assert!(text.contains("the collector frees"), "{text}");
    for prefix in ["/nightly", "/nightly/upload"] {
        for path in [&shared, &own] {
            let target = format!("{prefix}/{}.narinfo", hash_part(path));
            assert_eq!(server.get(&target).status, 404, "{target}");
        }
        assert_eq!(server.get(&format!("{prefix}/{file}")).status, 404);
    }
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&shared)));
    assert_eq!(narinfo.status, 200, "the other cache keeps its path");
    let made = MadePath::new("made");
    let target = format!("/nightly{}", made.file_target());
    assert_eq!(server.put(&nightly, &target, &made.file).status, 401);
    let refused = fails(&mut cache(&site, &["delete", "--yes", "nightly"]));
    assert!(refused.contains("no cache \"nightly\""), "{refused}");

    collect(&site);
    let files = site.files();
    assert!(!files.contains(&file), "{files:?}");
    let local = format!("local?root={}", dir.path().join("store").display());
    let mut pull = nix("nix", dir.path());
    pull.args(["copy", "--from", &server.url(), "--to", &local, &shared]);
    output(pull.args(["--option", "trusted-public-keys", &site.public_key]));

    // The configuration still names the cache, so clients can push to it anew.
    output(&mut nix_copy("/nightly", &own));
    assert_eq!(server.get(&path).status, 200);
    server.process.terminate();
}

#[test]
fn an_interrupted_deletion_hides_all_paths_and_is_completed_later() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib");
    let app = MadePath::new("app").referring_to(&lib.store_path);
    for path in [&lib, &app] {
        server.publish(&token, path);
    }
    let log = "/log/00000000000000000000000000000000-made.drv";
    assert_eq!(server.put(&token, log, "built").status, 200);
    site.sql("create trigger stop before delete on path begin select raise(abort, 'stopped'); end");
    let failed = fails(&mut cache(&site, &["delete", "--yes", "default"]));
    assert!(failed.contains("run the command again"), "{failed}");
    assert_eq!(list(&site)[0]["deleting"], true);
    server.assert_lacks(&lib);
    server.assert_lacks(&app);
    assert_eq!(server.get(log).status, 404);
    let other = MadePath::new("other");
    assert_eq!(publish(&server, "", &token, &other), 409);
    server.process.terminate();
    let server = site.start();
    server.assert_lacks(&app);

    site.sql("drop trigger stop");
    output(samovar().args(["gc", "--storage"]).arg(site.storage()));
    assert_eq!(site.sql("select count(*) from path"), "0");
    let files = site.files();
    assert!(
        !files.iter().any(|file| file.ends_with(".narinfo")),
        "{files:?}"
    );
    assert_eq!(list(&site), serde_json::json!([]));
    for path in [&lib, &app] {
        assert_eq!(publish(&server, "", &token, path), 200);
    }
    server.assert_serves(&app);
    assert_eq!(list(&site)[0]["paths"], 2);
}

#[test]
fn a_killed_deletion_has_hidden_all_paths_or_none() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let paths: Vec<MadePath> = (0..5)
        .map(|number| MadePath::new(&format!("made-{number}")))
        .collect();
    let rows = || {
        site.sql("select count(*) from path")
            .parse::<u32>()
            .expect("is a number")
    };
    let is_hidden = || site.sql("select deletion from cache") != "0";
    // The last effect needs several transactions, because the cache has many rows.
    let effects: [&dyn Fn() -> bool; 3] = [&|| true, &is_hidden, &|| rows() < 3000];
    for effect in effects {
        for path in &paths {
            server.publish(&token, path);
        }
        site.sql(
            "with recursive row (number) as (values (1) union all \
                 select number + 1 from row where number < 3000) \
             insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                 registered_at) \
             select 1, randomblob(20), 'row', (select min(nar_id) from path), 0, '', 0 from row",
        );
        let mut command = cache(&site, &["delete", "--yes", "default"]);
        let mut deleting = command.stdout(Stdio::null()).spawn().expect("starts");
        while !effect() && deleting.try_wait().expect("waits").is_none() {}
        // Ignore whether the process has already ended: the outcome is that of a kill after its
        // last step.
        deleting.kill().expect("is killed");
        deleting.wait().expect("has ended");
        let expected = if is_hidden() { 404 } else { 200 };
        for path in &paths {
            assert_eq!(server.get(&path.target()).status, expected);
            assert_eq!(server.get(&path.file_target()).status, expected);
        }
        // Completes the deletion, or does all of it; if all was done, there is no such cache.
        cache(&site, &["delete", "--yes", "default"])
            .output()
            .expect("starts");
        assert_eq!(rows(), 0);
        for path in &paths {
            server.assert_lacks(path);
        }
    }
}
