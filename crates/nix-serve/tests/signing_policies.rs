//! Signing policies decide which keys sign which paths, and whether stored signatures are kept.
//! Realisations are signed as by Nix. All this can be reloaded under load.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_caches;
mod support_process;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use samovar_cache::{CacheConfig, SecretKey, Sign, Signing, Stored};
use samovar_nix::{PublicKey, Signature};

use support::client::{Client, fails, succeeds};
use support::{OwnStore, hash_part, key_pair, sample, sample_root};
use support_caches::{Serving, key};
use support_process::Connection;
use testkit::sqlite::run as sqlite;

/// Creates a key pair with Nix.
fn made(dir: &Path, name: &str) -> (SecretKey, PublicKey) {
    let (secret, public) = key_pair(dir, name);
    (key(&secret), PublicKey::parse(&public).unwrap())
}

fn cache(prefix: &str, signing: Signing) -> CacheConfig {
    CacheConfig {
        path_prefix: prefix.to_owned(),
        signing,
        ..CacheConfig::default()
    }
}

fn signing(keys: &[&SecretKey]) -> Signing {
    Signing {
        keys: keys.iter().map(|&key| key.clone()).collect(),
        ..Signing::default()
    }
}

fn fields<'a>(narinfo: &'a str, name: &str) -> Vec<&'a str> {
    let lines = narinfo.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(field, _)| *field == name)
        .map(|(_, value)| value)
        .collect()
}

/// Returns the text that a narinfo's signatures cover, built as a client does.
fn fingerprint(narinfo: &str) -> String {
    let field = |name| fields(narinfo, name).first().copied().unwrap_or_default();
    let references: Vec<String> = field("References")
        .split_ascii_whitespace()
        .map(|base_name| format!("/nix/store/{base_name}"))
        .collect();
    format!(
        "1;{};{};{};{}",
        field("StorePath"),
        field("NarHash"),
        field("NarSize"),
        references.join(",")
    )
}

/// Returns the names of the keys that have signed a narinfo. Signatures by the given keys must be
/// valid.
#[track_caller]
fn signers(narinfo: &str, keys: &[&PublicKey]) -> Vec<String> {
    let signatures = fields(narinfo, "Sig");
    let signatures: Vec<_> = signatures
        .iter()
        .map(|text| Signature::parse(text).unwrap())
        .collect();
    for signature in &signatures {
        let named = keys.iter().find(|key| key.name() == signature.key_name());
        if let Some(key) = named {
            assert!(
                key.verify(fingerprint(narinfo).as_bytes(), signature),
                "{narinfo}"
            );
        }
    }
    signatures
        .iter()
        .map(|one| one.key_name().to_owned())
        .collect()
}

#[test]
fn the_configured_paths_are_signed_with_the_configured_keys() {
    let dir = tempfile::tempdir().unwrap();
    let ((one, one_public), (two, two_public)) =
        (made(dir.path(), "one-1"), made(dir.path(), "two-1"));
    // A different key with the same name as a key in the store.
    let (same, same_public) = made(dir.path(), "test-1");
    let trusted = PublicKey::parse(&sample("signed_by")).unwrap();
    let with = |sign, stored| Signing {
        sign,
        stored,
        ..signing(&[&one, &two])
    };
    let both = Sign::TrustedBy(vec![one_public.clone(), trusted]);
    let serving = Serving::start(
        &sample_root(),
        vec![
            cache("/none", Signing::default()),
            cache("/all", with(Sign::All, Stored::Replace)),
            cache("/keep", with(Sign::All, Stored::Keep)),
            cache("/built", with(Sign::Ultimate, Stored::Replace)),
            cache("/trusted", with(both, Stored::Replace)),
            cache(
                "/other",
                with(Sign::TrustedBy(vec![two_public.clone()]), Stored::Keep),
            ),
            cache("/never", with(Sign::None, Stored::Keep)),
            cache(
                "/same",
                Signing {
                    stored: Stored::Keep,
                    ..signing(&[&same, &one, &same])
                },
            ),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let (signed, built, plain) = (sample("signed"), sample("built"), sample("big"));
    let all = ["one-1", "two-1"];
    let stored = ["another-1", "test-1"];
    let cases: [(&str, &str, &[&str]); 21] = [
        ("none", &signed, &stored),
        ("none", &plain, &[]),
        ("all", &signed, &all),
        ("all", &plain, &all),
        ("all", &built, &all),
        ("keep", &signed, &["one-1", "two-1", "another-1", "test-1"]),
        ("keep", &plain, &all),
        ("built", &signed, &stored),
        ("built", &plain, &[]),
        ("built", &built, &all),
        ("trusted", &signed, &all),
        ("trusted", &plain, &[]),
        ("trusted", &built, &[]),
        ("other", &signed, &stored),
        ("other", &plain, &[]),
        ("other", &built, &[]),
        ("never", &signed, &stored),
        ("never", &plain, &[]),
        ("never", &built, &[]),
        ("same", &signed, &["test-1", "one-1", "another-1"]),
        ("same", &plain, &["test-1", "one-1"]),
    ];
    for (cache, path, expected) in cases {
        let url = format!("/{cache}/{}.narinfo", hash_part(path));
        for _ in 0..2 {
            let narinfo = connection.get(&url).text();
            let by = signers(&narinfo, &[&one_public, &two_public]);
            assert_eq!(by, expected, "{url}");
            assert!(!narinfo.contains("\nCA: "), "{narinfo}");
            if cache == "same" {
                signers(&narinfo, &[&same_public]);
            }
        }
    }
    // A client that trusts only the second key accepts a path signed by both.
    let client = Client::new();
    let public = two_public.to_string();
    let url = |cache: &str| format!("http://{}/{cache}", serving.addr());
    // This path is not content-addressed, so it needs a signature.
    let path = [sample("top")];
    let said = fails(&mut client.copy(&url("built"), &public, &path));
    assert!(said.contains("lacks a valid signature"), "{said}");
    succeeds(&mut client.copy(&url("all"), &public, &path));
}

/// A configured cache sends content addresses, with which a client needs no signature.
#[test]
fn content_addresses_are_sent_if_configured() {
    let serving = Serving::start(
        &sample_root(),
        vec![
            cache("/plain", Signing::default()),
            cache(
                "/ca",
                Signing {
                    emit_ca: true,
                    ..Signing::default()
                },
            ),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let database = sample_root().join("nix/var/nix/db/db.sqlite");
    let database = format!("file:{}?mode=ro", database.display());
    for name in ["big", "fixed", "text", "signed"] {
        let path = sample(name);
        let sql = format!("select ca from ValidPaths where path = '{path}'");
        let address = sqlite(database.as_ref(), &sql);
        let mut get = |cache: &str| {
            connection
                .get(&format!("/{cache}/{}.narinfo", hash_part(&path)))
                .text()
        };
        assert_eq!(get("ca"), format!("{}CA: {address}\n", get("plain")));
    }
    let path = [sample("big")];
    let url = |cache: &str| format!("http://{}/{cache}", serving.addr());
    let client = Client::new();
    fails(&mut client.copy(&url("plain"), "", &path));
    succeeds(&mut client.copy(&url("ca"), "", &path));
}

/// The server signs a realisation exactly as Nix does: Nix signs it after a build, and with the
/// same key the signatures are equal.
#[test]
fn realisations_are_signed_as_nix_signs_them() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "one-1");
    let (other, _) = made(dir.path(), "two-1");
    let expression = "derivation { name = \"ca\"; system = builtins.currentSystem; \
                      builder = \"/bin/sh\"; args = [ \"-c\" \"echo $name > $out\" ]; \
                      __contentAddressed = true; outputHashMode = \"recursive\"; \
                      outputHashAlgo = \"sha256\"; }";
    let secret_file = secret.to_str().unwrap();
    // Build in a sandbox, or the builder would write to this machine's `/nix/store`.
    let options = [
        ("experimental-features", "ca-derivations nix-command"),
        ("secret-key-files", secret_file),
        ("substituters", ""),
        ("sandbox", "true"),
        ("sandbox-fallback", "false"),
        ("sandbox-paths", "/bin /usr /lib /lib64?"),
    ];
    let mut arguments = vec!["--expr", expression, "--no-out-link"];
    for (name, value) in options {
        arguments.extend(["--option", name, value]);
    }
    store.run("nix-build", &arguments);
    let database = store.database();
    let hash = sqlite(&database, "select drvPath from Realisations");
    let by_nix = sqlite(&database, "select signatures from Realisations");
    assert!(by_nix.starts_with("one-1:"), "{by_nix}");
    sqlite(&database, "update Realisations set signatures = ''");
    let realisations = |keys: &[&SecretKey], stored, sign| Signing {
        realisations: true,
        stored,
        sign,
        ..signing(keys)
    };
    let one = key(&secret);
    let public = PublicKey::parse(&public).unwrap();
    let serving = Serving::start(
        store.root(),
        vec![
            cache("/off", signing(&[&one])),
            cache("/one", realisations(&[&one], Stored::Replace, Sign::All)),
            cache(
                "/built",
                realisations(&[&one], Stored::Replace, Sign::Ultimate),
            ),
            cache(
                "/never",
                realisations(&[&one], Stored::Replace, Sign::TrustedBy(vec![public])),
            ),
            cache("/two", realisations(&[&other], Stored::Keep, Sign::All)),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let mut signatures = |cache: &str| {
        let reply = connection.get(&format!("/{cache}/realisations/{hash}!out.doi"));
        assert_eq!(reply.status, 200);
        let document: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        let signatures = document["signatures"].as_array().unwrap();
        signatures
            .iter()
            .map(|one| one.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(signatures("one"), [by_nix.as_str()]);
    assert_eq!(signatures("built"), [by_nix.as_str()]);
    assert_eq!(signatures("off"), [""; 0]);
    // Remove the signatures that Nix added at registration, so that the store has none by that key.
    sqlite(&database, "update ValidPaths set sigs = ''");
    assert_eq!(signatures("never"), [""; 0]);
    sqlite(
        &database,
        &format!("update Realisations set signatures = '{by_nix}'"),
    );
    let both = signatures("two");
    assert_eq!(both.len(), 2);
    assert_eq!(both[0], by_nix);
    assert!(both[1].starts_with("two-1:"), "{both:?}");
}

/// Keys change under constant requests. No request fails, and each response has the signatures of
/// one configuration.
#[test]
fn keys_change_at_once_and_no_request_fails() {
    let dir = tempfile::tempdir().unwrap();
    let ((one, one_public), (two, two_public)) =
        (made(dir.path(), "one-1"), made(dir.path(), "two-1"));
    let serving = Serving::start(&sample_root(), vec![cache("", signing(&[&one]))]);
    serving.site().prefetch_narinfos().unwrap();
    let paths = ["top", "big", "signed", "self_reference"].map(sample);
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ways: [(&[&SecretKey], &[&str]); 3] = [
        (&[&one], &["one-1"]),
        (&[&one, &two], &["one-1", "two-1"]),
        (&[&two], &["two-1"]),
    ];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut connection = Connection::connect(serving.addr());
                while !is_over.load(Ordering::Relaxed) {
                    for path in &paths {
                        let reply = connection.get(&format!("/{}.narinfo", hash_part(path)));
                        assert_eq!(reply.status, 200);
                        let by = signers(&reply.text(), &[&one_public, &two_public]);
                        assert!(ways.iter().any(|(_, names)| by == *names), "{by:?}");
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut connection = Connection::connect(serving.addr());
        for round in 0..100 {
            let (keys, names) = ways[round % ways.len()];
            let caches = vec![cache("", signing(keys))];
            serving.site().reconfigure(caches, None, || Ok(())).unwrap();
            // Requests after the change must get the new signatures.
            let url = format!("/{}.narinfo", hash_part(&paths[round % paths.len()]));
            let by = signers(&connection.get(&url).text(), &[&one_public, &two_public]);
            assert_eq!(by, names);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(asked.load(Ordering::Relaxed) > 100);
}
