//! If a push fails, `samovar push` states the reason at once in one line that says what to do, and
//! ends with the exit code for that reason. `nix copy` prints the reason of the server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{nix, samovar, sample, sample_root, sample_store, secret_file, user};
use support_push::proxy::{Action, Proxy};
use support_push::{Pusher, assert_copies_back, closure, count, exits_with};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::nix::{OwnStore, hash_part, local};
use testkit::process::{Process, fails, finish, output};

fn site() -> (Site, Running) {
    let site = Site::new();
    let server = site.start();
    (site, server)
}

/// Starts a server without storage.
fn read_only() -> (Site, Running) {
    let site = Site::new();
    let text = fs::read_to_string(site.config()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("storage"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(site.config(), text).unwrap();
    let server = site.start();
    (site, server)
}

/// Runs a command that must end with this exit code and one line that contains all these parts.
#[track_caller]
fn ends_with(command: &mut Command, code: i32, parts: &[&str]) {
    let text = exits_with(command, code);
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn an_unreachable_server_is_reported_at_the_first_failure() {
    let (site, server) = site();
    let path = [sample("self_reference")];
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    let proxy = Proxy::start(server.address, |_| Action::Close);
    let url = proxy.url();
    let mut push = Process::try_spawn(&mut pusher.push(&url, &[&path[0]])).unwrap();
    let line = push.wait_for("trying for a minute");
    let expected = format!("samovar: {url} cannot be reached (");
    assert!(line.starts_with(&expected), "{line}");
    proxy.resume(server.address);
    assert_eq!(push.wait(), Some(0));
    assert_eq!(push.count("cannot be reached"), 1, "{:?}", push.lines());
    assert_copies_back(&server.url(), &site.public_key, &sample_root(), &path);

    // A proxy answers for a server that is down.
    let gateway = Proxy::start(server.address, |_| Action::Refuse(502));
    let mut push = Process::try_spawn(&mut pusher.push(&gateway.url(), &[&path[0]])).unwrap();
    push.wait_for("answered 502 Bad Gateway; trying for a minute");
    gateway.resume(server.address);
    assert_eq!(push.wait(), Some(0));

    // `samovar use` gives up after a few seconds.
    let dead = Proxy::start(server.address, |_| Action::Close);
    let text = exits_with(samovar().args(["use", "--yes", &dead.url()]), 3);
    let (first, second) = text.split_once('\n').unwrap();
    assert!(first.ends_with("; trying for a few seconds"), "{text}");
    assert!(second.contains("check the URL, the network"), "{text}");
}

/// Writes a certificate for the host `example.org`, its key, and its issuer into the directory of
/// the site.
fn certificates(site: &Site) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let name = rcgen::DnType::CommonName;
    params.distinguished_name.push(name, "authority");
    let key = KeyPair::generate().unwrap();
    let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
    let params = CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    secret_file(site.dir(), "issuer", &issuer.pem());
    secret_file(site.dir(), "certificate", &certificate.pem());
    secret_file(site.dir(), "key", &key.serialize_pem());
}

#[test]
fn a_wrong_scheme_or_certificate_ends_the_command_at_once() {
    let (plain_site, plain) = site();
    certificates(&plain_site);
    let site = Site::new();
    certificates(&site);
    let file = |name: &str| site.dir().join(name);
    let (certificate, key) = (file("certificate"), file("key"));
    site.configure_empty(&format!(
        "tls.certificate = {certificate:?}\ntls.key = {key:?}\n"
    ));
    let mut serve = samovar();
    let process = Process::spawn(serve.args(site.arguments()));
    let line = process.wait_for(" on https://");
    let secure = line.rsplit("//").next().unwrap().trim();
    let plain = plain.address.to_string();
    let localhost = format!("localhost:{}", secure.rsplit(':').next().unwrap());
    let pusher = Pusher::new(&sample_store(), "smv1_x");
    let of_other = plain_site.dir().join("issuer");
    for (url, trusted, part) in [
        (
            format!("https://{plain}/a"),
            file("issuer"),
            format!("the server does not speak TLS: use http://{plain}\n"),
        ),
        (
            format!("http://{secure}/a"),
            file("issuer"),
            format!("speaks only HTTPS: use https://{secure}\n"),
        ),
        (
            format!("https://{localhost}"),
            file("issuer"),
            "the server's certificate is not for \"localhost\"".to_owned(),
        ),
        (
            format!("https://{localhost}"),
            of_other,
            "does not trust the issuer".to_owned(),
        ),
    ] {
        for mut command in [pusher.push(&url, &[&sample("text")]), {
            let mut setup = samovar();
            setup.args(["use", "--yes", &url]);
            setup
        }] {
            let command = command.env("NIX_SSL_CERT_FILE", &trusted);
            ends_with(command, 3, &[&part]);
        }
        let mut doctor = samovar();
        doctor.args(["doctor", "--url", &url, "--config"]);
        doctor.env("NIX_SSL_CERT_FILE", &trusted);
        let output = finish(doctor.arg(site.config()));
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, found) = text.split_once("error   round trip: ").unwrap();
        let message = found.replacen("\n        fix: ", ": ", 1);
        assert!(message.contains(&part), "{text}");
        assert!(!text.contains("start the server"), "{text}");
    }
}

#[test]
fn a_host_name_that_cannot_be_resolved_is_named() {
    let pusher = Pusher::new(&sample_store(), "smv1_x");
    let url = "http://samovar.invalid";
    let mut push = pusher.push(url, &[&sample("text")]);
    push.env("SAMOVAR_PLAIN_HTTP", "samovar.invalid");
    let push = Process::try_spawn(&mut push).unwrap();
    // Without a network, the name server cannot say that the name does not exist.
    let line = push.wait_for("cannot be reached");
    let reasons = ["there is no host \"samovar.invalid\"", "cannot be resolved"];
    assert!(reasons.iter().any(|part| line.contains(part)), "{line}");
}

#[test]
fn a_refused_token_is_named_by_its_source_with_the_reason() {
    for is_private in [false, true] {
        let site = Site::new();
        let users = secret_file(site.dir(), "users", &user("ada", "secret"));
        let access = match is_private {
            true => format!("access.users-file = {users:?}\n"),
            false => String::new(),
        };
        site.configure_empty(&format!("{access}[caches.a]\n[caches.b]\n"));
        let server = site.start();
        let url = format!("{}/a", server.url());
        let path = sample("text");
        let revoked = site.token(&["--name", "old"]);
        site.revoke("old");
        let of_other = site.token(&["--name", "other", "--cache", "b"]);

        let pusher = Pusher::new(&sample_store(), site.expired_token());
        let token_file = format!("the token in {:?}: ", pusher.home().join("token"));
        let expired = [&*token_file, "the token \"expired\" has expired"];
        ends_with(&mut pusher.push(&url, &[&path]), 1, &expired);

        let mut push = pusher.without_token(&url);
        let push = push.arg(&path).env("SAMOVAR_TOKEN", "smv1_wrong");
        let unknown = ["the token in SAMOVAR_TOKEN: the token is unknown: ask"];
        ends_with(push, 1, &unknown);

        let with_login = url.replace("//", &format!("//ci:{of_other}@"));
        let mut push = pusher.without_token(&with_login);
        let other = ["the login in the URL: the token \"other\" is for the cache \"b\""];
        ends_with(push.arg(&path), 1, &other);

        let line = format!("machine 127.0.0.1 login ci password {revoked}\n");
        let netrc = secret_file(pusher.home(), "netrc", &line);
        let in_netrc = format!("the password for \"127.0.0.1\" in {netrc:?}: ");
        let mut push = pusher.without_token(&url);
        let revoked = [&*in_netrc, "the token \"old\" was revoked"];
        ends_with(push.arg(&path), 1, &revoked);

        fs::remove_file(netrc).unwrap();
        let mut push = pusher.without_token(&url);
        let none = ["it requires a token: give one with --token-file FILE"];
        ends_with(push.arg(&path), 1, &none);
        assert!(site.files().is_empty());
    }
}

#[test]
fn a_spool_ends_with_the_refusal_and_keeps_its_files() {
    let (_site, server) = site();
    let pusher = Pusher::new(&sample_store(), "smv1_wrong");
    let spool = pusher.home().join("spool");
    fs::create_dir(&spool).unwrap();
    let file = spool.join("build.paths");
    fs::write(&file, format!("{}\n", sample("text"))).unwrap();
    let mut push = pusher.push(&server.url(), &["--spool", spool.to_str().unwrap()]);
    ends_with(&mut push, 1, &["the token is unknown"]);
    assert!(file.exists());
}

#[test]
fn a_file_without_a_token_is_refused_before_anything_is_sent() {
    let pusher = Pusher::new(&sample_store(), "");
    // Nothing listens at port 0.
    let url = "http://127.0.0.1:0";
    for text in ["", "cache-1:AAAA\n", "machine a login b password c\n"] {
        secret_file(pusher.home(), "token", text);
        let file = format!("{:?} has no token", pusher.home().join("token"));
        let parts = [&*file, "begins with smv1_"];
        ends_with(&mut pusher.push(url, &[&sample("text")]), 2, &parts);
        let mut setup = samovar();
        setup.args(["use", "--yes", url, "--token-file"]);
        ends_with(setup.arg(pusher.home().join("token")), 2, &parts);
    }
}

#[test]
fn a_cache_without_storage_says_that_it_takes_no_uploads() {
    let (_site, server) = read_only();
    let path = sample("text");
    let pusher = Pusher::new(&sample_store(), "smv1_x");
    let part = "takes no uploads: check it, or ask the operator";
    let dir = tempfile::tempdir().unwrap();
    for url in [server.url(), format!("{}/upload", server.url())] {
        ends_with(&mut pusher.push(&url, &[&path]), 1, &[part]);
        let mut copy = nix("nix", dir.path());
        copy.args(["copy", "--no-check-sigs", "--from", &sample_store()]);
        let text = fails(copy.args(["--to", &url, &path]));
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_url_without_a_cache_is_named() {
    let (site, server) = site();
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    let url = format!("{}/uplaod", server.url());
    let part = format!("there is no cache at {url}, ");
    let mut push = pusher.push(&url, &[&sample("text")]);
    ends_with(&mut push, 1, &[&part, "404", "check the URL"]);
}

#[test]
fn a_dry_run_needs_no_right_to_push() {
    let (site, server) = site();
    let path = sample("self_reference");
    let all = closure(&sample_root(), std::slice::from_ref(&path)).len();
    let reader = Pusher::new(&sample_store(), &site.token(&["--rights", "read"]));
    let mut without_token = reader.without_token(&server.url());
    let listed = output(without_token.args(["--dry-run", &path]));
    assert_eq!(listed.lines().count(), all + 1, "{listed}");
    let report = reader.report(&server.url(), &["--dry-run", &path]);
    assert_eq!(count(&report, "pushed"), all);
    ends_with(&mut reader.push(&server.url(), &[&path]), 1, &["403"]);
    assert!(site.files().is_empty());

    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    output(&mut pusher.push(&server.url(), &[&path]));
    let report = reader.report(&server.url(), &["--dry-run", &path]);
    assert_eq!(
        (count(&report, "pushed"), count(&report, "present")),
        (0, all)
    );
    let unknown = Pusher::new(&sample_store(), "smv1_wrong");
    let mut push = unknown.push(&server.url(), &["--dry-run", &path]);
    ends_with(&mut push, 1, &["the token is unknown"]);
}

#[test]
fn a_link_is_read_even_if_its_target_is_not_on_this_file_system() {
    let (site, server) = site();
    let path = sample("text");
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    let link = pusher.home().join("result");
    symlink(&path, &link).unwrap();
    let link = link.to_str().unwrap();
    output(&mut pusher.push(&server.url(), &[link]));
    let gone = MadePath::new("gone").store_path;
    let link = pusher.home().join("gone");
    symlink(&gone, &link).unwrap();
    let part = format!("{gone}, to which {link:?} leads, is not in the store");
    let mut push = pusher.push(&server.url(), &[link.to_str().unwrap()]);
    ends_with(&mut push, 1, &[&part]);
}

#[test]
fn usage_errors_end_with_exit_code_2() {
    let (site, server) = site();
    let url = server.url();
    let path = sample("text");
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    let store = sample_store();
    let (push, setup): (&[&str], &[&str]) = (&["push", "--store", &store], &["use", "--yes"]);
    let storage = site.storage();
    let import = &["import", "--storage", storage.to_str().unwrap()][..];
    let with_query = format!("{url}/upload?compression=zstd");
    for (command, arguments, part) in [
        (push, &[&*path, &*url][..], "does not begin with http://"),
        (push, &["localhost:5000", &path], "does not begin with http"),
        (push, &[&with_query, &path], "parameters of Nix"),
        (push, &[&url, "./nowhere"], "is not a path in /nix/store"),
        (push, &[&url, &path, "--netrc-file", "none"], "cannot read"),
        (
            push,
            &[&url, "--exec", "nix", "--version"],
            "--exec after --",
        ),
        (push, &[&url, "--exec", "nix"], "--exec after --"),
        (setup, &["localhost:5000"], "does not begin with http://"),
        (setup, &["file:///tmp"], "does not begin with http://"),
        (setup, &[&with_query], "parameters of Nix"),
        (import, &["--from", "file://tmp/old"], "file:///tmp/old"),
        (import, &["--from", &url], "name those to import"),
        (&["export", "--to", "x"], &[], "no storage is configured"),
    ] {
        let mut samovar = samovar();
        samovar.current_dir(pusher.home());
        ends_with(samovar.args(command).args(arguments), 2, &[part]);
    }
    let absent = MadePath::new("absent").store_path;
    let mut export = samovar();
    export.args(["export", "--storage"]).arg(&storage);
    let export = export.args(["--to", "x", &absent]).current_dir(site.dir());
    output(&mut pusher.push(&url, &[&path]));
    ends_with(export, 1, &["the cache does not have", &absent]);
    let mut command = samovar();
    let dead = ["--from", "http://127.0.0.1:0", &*path];
    ends_with(command.args(import).args(dead), 3, &["be reached"]);
}

#[test]
fn the_command_of_exec_does_not_get_the_token() {
    let (site, server) = site();
    let store = OwnStore::new();
    store.add_file("any", b"any");
    let pusher = Pusher::new(&local(store.root()), "");
    let mut push = pusher.without_token(&server.url());
    push.env("SAMOVAR_TOKEN", site.token(&[]));
    push.args(["--exec", "--", "sh", "-c", "exit ${SAMOVAR_TOKEN:+9}"]);
    assert_eq!(finish(&mut push).status.code(), Some(0));
    // The variable is no option of the server.
    let mut check = samovar();
    check.args(site.arguments()).arg("--check-config");
    output(check.env("SAMOVAR_TOKEN", "smv1_x"));
}

#[test]
fn a_nar_that_the_cache_loses_during_the_push_is_sent_again() {
    let (site, server) = site();
    let (first, store) = (OwnStore::new(), OwnStore::new());
    let other = first.add_file("other", b"the same contents");
    let path = store.add_file("path", b"the same contents");
    let user = store.add_file("user", b"no reference");
    let token = site.token(&[]);
    output(&mut Pusher::new(&local(first.root()), &token).push(&server.url(), &[&other]));
    let proxy = Proxy::start(server.address, |line| match line.contains("/publish") {
        true => Action::Hold,
        false => Action::Forward,
    });
    // The cache has the NAR of `path`, so the client does not send it.
    let pusher = Pusher::new(&local(store.root()), &token);
    let mut push = pusher.push(&proxy.url(), &[&path, &user]);
    let mut process = Process::try_spawn(&mut push).unwrap();
    eventually("the push is to be published", || proxy.held_count() == 1);
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&other)));
    let narinfo = narinfo.text().to_owned();
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    fs::remove_file(site.storage().join(url.unwrap())).unwrap();
    let mut fsck = samovar();
    fsck.args(["fsck", "--repair", "--storage"])
        .arg(site.storage());
    exits_with(&mut fsck, 1);
    proxy.resume(server.address);
    assert_eq!(process.wait(), Some(0), "{:?}", process.lines());
    let paths = [path, user];
    assert_copies_back(&server.url(), &site.public_key, store.root(), &paths);
    let opened = proxy.exchanges("/open");
    assert_eq!(opened.len(), 2);
}

/// A line of `nix.conf` may have parameters after the URL of a cache. No request is sent for a URL
/// that only Nix understands.
#[test]
fn parameters_and_fragments_of_a_url_are_refused_by_every_command() {
    let storage = tempfile::tempdir().unwrap();
    let storage = storage.path().join("storage");
    let storage = storage.to_str().unwrap();
    let path = MadePath::new("path").store_path;
    let closed = testkit::closed_port::ClosedPort::new();
    let url = format!("http://{}/", closed.addr());
    let (query, fragment) = (format!("{url}?priority=1"), format!("{url}#x"));
    let reference = format!("{query}#main");
    let in_query = "has parameters of Nix: leave out the part from the question mark on";
    let in_fragment = "has a fragment: leave out the part from # on";
    for (arguments, part) in [
        (&["query", &query, &path][..], in_query),
        (&["query", &fragment, &path], in_fragment),
        (&["closure", &query, &path], in_query),
        (&["push", &query, &path], in_query),
        (&["push", ".", &reference], in_query),
        (&["pull", &reference, "new"], in_query),
        (&["ref", "list", &query], in_query),
        (&["mount", "--store", &query, "new"], in_query),
        (
            &["import", "--storage", storage, "--from", &query, &path],
            in_query,
        ),
        (
            &["import", "--storage", storage, "--from", &fragment, &path],
            in_fragment,
        ),
        (&["status", &query], in_query),
        (&["doctor", "--url", &query], in_query),
        (&["use", &query], in_query),
        (&["use", &fragment], in_fragment),
    ] {
        ends_with(samovar().args(arguments), 2, &[part]);
    }
}
