//! The shortest way through everything: a real client copies a closure whose signatures it checks.

mod support;

use support::{
    ServerProcess, key_pair, local, nix, nix_serve, output, sample, sample_list, sample_root,
};

#[test]
fn a_closure_is_copied_with_verified_signatures() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "test-1");
    let store = local(&sample_root());
    let server = ServerProcess::start(
        nix_serve()
            .args(["--store", &store])
            .env("NIX_SECRET_KEY_FILE", secret),
    );
    let destination = dir.path().join("destination");
    output(
        nix("nix", dir.path())
            .args(["copy", "--from", &server.url(), "--to"])
            .arg(&destination)
            .args(["--option", "require-sigs", "true"])
            .args(["--option", "trusted-public-keys", &public])
            .arg(sample("top")),
    );
    let mut query = nix("nix-store", dir.path());
    query
        .arg("--store")
        .arg(&destination)
        .args(["--query", "--requisites", &sample("top")]);
    let copied = output(&mut query);
    assert_eq!(copied.lines().count(), sample_list("closure").len());
    assert!(copied.lines().count() >= 300);
}
