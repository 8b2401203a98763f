//! A real Nix client that checks signatures accepts closures signed with the server's key, and
//! refuses closures signed with another key.

mod support;

use std::path::Path;
use std::process::Stdio;

use support::client::{Client, fails, succeeds, wait};
use support::{Nix, ServerProcess, key_pair, local, nix_serve, sample, sample_list, sample_root};

/// Starts a server of the sample store that signs with the key in `secret`.
fn signing_server(secret: &Path) -> ServerProcess {
    ServerProcess::start(
        nix_serve()
            .args(["--store", &local(&sample_root())])
            .env("NIX_SECRET_KEY_FILE", secret),
    )
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list
}

#[test]
fn a_closure_of_300_paths_is_copied_with_verified_signatures() {
    Nix::all().iter().for_each(copies_with_verified_signatures);
}

#[track_caller]
fn copies_with_verified_signatures(nix: &Nix) {
    let client = Client::of(nix);
    let (secret, public) = key_pair(client.dir(), "test-1");
    let server = signing_server(&secret);
    succeeds(&mut client.copy(&server.url(), &public, &[sample("top")]));
    let copied = client.closure(&sample("top"));
    assert!(copied.len() >= 300, "{}", copied.len());
    assert_eq!(sorted(copied), sorted(sample_list("closure")));
    // The copy matches the registration and carries the server's signature.
    let mut verify = client.command("nix");
    verify
        .args(["store", "verify", "--all", "--store"])
        .arg(client.root())
        .args(["--option", "trusted-public-keys", &public]);
    succeeds(&mut verify);
}

#[test]
fn the_right_key_among_several_is_enough() {
    let client = Client::new();
    let (secret, public) = key_pair(client.dir(), "ours-1");
    let (_, before) = key_pair(client.dir(), "another-1");
    let (_, after) = key_pair(client.dir(), "zebra-1");
    let server = signing_server(&secret);
    let keys = format!("{before} {public} {after}");
    succeeds(&mut client.copy(&server.url(), &keys, &[sample("kinds")]));
    assert_eq!(client.closure(&sample("kinds")), [sample("kinds")]);
}

/// Copies a path that is not content-addressed, which only a signature can authenticate, and checks
/// that the client refuses it.
#[track_caller]
fn refused(server: &ServerProcess, client: &Client, keys: &str) {
    let path = sample("no_references");
    let error = fails(&mut client.copy(&server.url(), keys, std::slice::from_ref(&path)));
    let expected = [
        format!("cannot add path '{path}' because it lacks a valid signature"),
        // Since Nix 2.9.
        format!("cannot add path '{path}' because it lacks a signature by a trusted key"),
    ];
    assert!(expected.iter().any(|text| error.contains(text)), "{error}");
    assert!(!client.real(&path).exists());
}

#[test]
fn another_key_is_refused() {
    for nix in Nix::all() {
        let client = Client::of(&nix);
        let (secret, _) = key_pair(client.dir(), "ours-1");
        let (_, other) = key_pair(client.dir(), "another-1");
        refused(&signing_server(&secret), &client, &other);
    }
}

/// After a key was replaced by another of the same name, signatures of the other key are refused: a
/// matching name is not enough.
#[test]
fn another_key_of_the_same_name_is_refused() {
    let client = Client::new();
    let (secret, _) = key_pair(client.dir(), "ours-1");
    let elsewhere = tempfile::tempdir().unwrap();
    let (_, other) = key_pair(elsewhere.path(), "ours-1");
    refused(&signing_server(&secret), &client, &other);
}

#[test]
fn no_trusted_key_is_refused() {
    let client = Client::new();
    let (secret, _) = key_pair(client.dir(), "ours-1");
    refused(&signing_server(&secret), &client, "");
}

#[test]
fn an_unsigned_cache_is_refused() {
    let server = ServerProcess::of_store(&sample_root());
    for nix in Nix::all() {
        let client = Client::of(&nix);
        let (_, public) = key_pair(client.dir(), "ours-1");
        refused(&server, &client, &public);
    }
}

/// A server without a signing key passes on the signatures in the store.
#[test]
fn a_stored_signature_is_passed_on() {
    let server = ServerProcess::of_store(&sample_root());
    for nix in Nix::all() {
        let client = Client::of(&nix);
        succeeds(&mut client.copy(&server.url(), &sample("signed_by"), &[sample("signed")]));
        assert!(client.real(&sample("signed")).exists());
    }
}

#[test]
fn an_absent_path_is_reported_as_absent() {
    let server = ServerProcess::of_store(&sample_root());
    let paths = [sample("absent"), sample("not_valid")];
    for (nix, absent) in Nix::all()
        .iter()
        .flat_map(|nix| paths.iter().map(move |path| (nix, path)))
    {
        let client = Client::of(nix);
        let error = fails(&mut client.copy(&server.url(), "", std::slice::from_ref(absent)));
        assert!(error.contains(absent), "{error}");
        // To the client the path is absent, not broken, so it does not retry.
        assert!(!error.contains("unable to download"), "{error}");
    }
}

#[test]
fn two_copies_at_once() {
    let clients = [Client::new(), Client::new()];
    let (secret, public) = key_pair(clients[0].dir(), "ours-1");
    let server = signing_server(&secret);
    let running = clients.each_ref().map(|client| {
        let mut command = client.copy(&server.url(), &public, &[sample("top"), sample("tree")]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        (child, command)
    });
    for (child, command) in running {
        let output = wait(child, &command);
        assert!(output.status.success(), "{output:?}");
    }
    let expected = sorted(sample_list("closure"));
    for client in &clients {
        assert_eq!(sorted(client.closure(&sample("top"))), expected);
        assert!(client.real(&sample("tree")).is_dir());
    }
}
