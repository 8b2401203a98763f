//! A client that may not read a cache uses only what it has sent itself: it learns nothing about
//! the contents of others.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_protocol;
mod support_push;
mod support_uploads;

use samovar_protocol::recipe::Writer;
use serde_json::json;
use support::secret_file;
use support_protocol::Push;
use support_push::Pusher;
use support_uploads::{MadePath, Running, Site, assert_refused, hash};
use testkit::nix::{OwnStore, local, nix};
use testkit::process::output;

/// Starts a server whose cache admits only clients of `networks` or with a token. Publishes a path
/// with the first token that it returns. The second token has only the right to push.
fn with_secret(networks: &str, secret: &MadePath) -> (Site, Running, [String; 2]) {
    let site = Site::new();
    site.configure_empty(&format!("access.networks = [{networks:?}]\n"));
    let server = site.start();
    let tokens = [site.token(&[]), site.token(&["--rights", "push"])];
    server.publish(&tokens[0], secret);
    (site, server, tokens)
}

/// Returns a recipe of a NAR that is equal to its base.
fn copy_of(base: &MadePath) -> Vec<u8> {
    let mut recipe = Writer::new(zstd::Encoder::new(Vec::new(), 3).unwrap()).unwrap();
    recipe.copy(0, base.nar.len() as u64).unwrap();
    recipe.finish().unwrap().finish().unwrap()
}

#[test]
fn without_the_right_to_read_only_sent_nars_can_be_used() {
    let secret = MadePath::new("secret");
    let other = MadePath::new("other").containing(b"secret");
    assert_eq!(other.nar, secret.nar);
    let absent = MadePath::new("absent");
    let (_site, server, [reader, pusher]) = with_secret("192.0.2.0/24", &secret);
    let file = format!("/upload{}", secret.file_target());
    let push = Push::new(&server, &pusher);
    let (id, answers) = push.open(&[&other, &absent]);
    assert_eq!(answers, ["need", "need"]);
    let assemble = |base: &MadePath| {
        let target = format!("{id}/assemble?base={}", hash(&base.nar));
        push.send("POST", &target, copy_of(&secret))
    };
    // Each answer is the same as for a NAR that nobody has sent.
    let (taken, free) = (assemble(&secret), assemble(&absent));
    assert_refused(&taken, 409, &["no base NAR"]);
    let hide = |text: String, path: &MadePath| text.replace(&hash(&path.nar), "");
    assert_eq!(hide(taken.text(), &secret), hide(free.text(), &absent));
    let published = push.publish(&id, &[&other]);
    let need = format!("need {}\nend 1\n", other.hash_part());
    assert_eq!((published.status, published.text()), (409, need));
    let put = server.put(&pusher, &other.target(), other.narinfo());
    assert_refused(&put, 409, &["has not been uploaded with this token"]);
    for (method, status) in [("HEAD", 404), ("GET", 403)] {
        assert_eq!(server.request(method, &file, &pusher).status, status);
        assert_eq!(server.request(method, &file, &reader).status, 200);
    }
    assert_eq!(Push::new(&server, &reader).open(&[&other]).1, ["link"]);
    // What the client has sent itself, it can use in every way.
    assert_eq!(
        push.pack(&id, &[&other]),
        [format!("kept {}", hash(&other.nar))]
    );
    assert_eq!(server.request("HEAD", &file, &pusher).status, 200);
    assert_eq!(server.request("GET", &file, &pusher).status, 403);
    assert_eq!(assemble(&secret).status, 200);
    assert_eq!(push.open(&[&other]).1, ["link"]);
    push.published(&id, &[&other]);
    let narinfo = server.request("GET", &other.target(), &reader);
    assert_eq!(narinfo.status, 200);
}

#[test]
fn who_may_read_without_the_token_can_use_all_nars() {
    let secret = MadePath::new("secret");
    let other = MadePath::new("other").containing(b"secret");
    for networks in ["127.0.0.0/8", "0.0.0.0/0"] {
        let (_site, server, [_, pusher]) = with_secret(networks, &secret);
        let push = Push::new(&server, &pusher);
        let (id, answers) = push.open(&[&other]);
        assert_eq!(answers, ["link"]);
        push.published(&id, &[&other]);
    }
}

#[test]
fn clients_that_may_not_read_send_contents_that_the_cache_has() {
    let store = OwnStore::new();
    let paths: Vec<String> = ["first", "second", "third", "fourth"]
        .iter()
        .map(|name| store.add_file(name, b"the same contents"))
        .collect();
    let site = Site::new();
    site.configure_empty("access.networks = [\"192.0.2.0/24\"]\n");
    let server = site.start();
    let uri = local(store.root());
    let mut read_back = Vec::new();
    for (token, pair) in [site.token(&[]), site.token(&["--rights", "push"])]
        .iter()
        .zip(paths.chunks(2))
    {
        let pusher = Pusher::new(&uri, token);
        let report = pusher.report(&server.url(), &[&pair[0]]);
        assert_eq!(report["pushed"], json!([pair[0]]), "{report}");
        let login = format!("machine 127.0.0.1 login a password {token}\n");
        let netrc = secret_file(pusher.home(), "netrc", &login);
        let mut copy = nix("nix", pusher.home());
        copy.args(["copy", "--from", &uri, "--no-check-sigs", "--to"]);
        copy.arg(format!("{}/upload?compression=zstd", server.url()));
        output(
            copy.arg(&pair[1])
                .args(["--option", "netrc-file"])
                .arg(&netrc),
        );
        read_back.extend(pair);
    }
    let reader = site.token(&["--rights", "read"]);
    for path in read_back {
        let target = format!("/{}.narinfo", &path["/nix/store/".len()..][..32]);
        let narinfo = server.request("GET", &target, &reader).text();
        let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
        let file = server.request("GET", &format!("/{}", url.unwrap()), &reader);
        assert_eq!(file.status, 200, "{narinfo}");
    }
}
