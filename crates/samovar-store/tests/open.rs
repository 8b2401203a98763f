//! A store is opened from a URI and the environment. If it cannot be opened, the error states the
//! reason in one line.

mod support;

use samovar_store::{OpenError, open};
use support::NixStore;
use support::rows::{Journal, Rows};

#[track_caller]
fn check_message(error: OpenError, variant: fn(&OpenError) -> bool, words: &[&str]) {
    assert!(variant(&error), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

#[test]
fn every_way_to_name_the_same_store() {
    let nix = NixStore::new();
    let path = nix.add_text("a", "a");
    let _running = nix.daemon();
    let at = |name: &str| nix.join(name).to_str().unwrap().to_owned();
    let uris = [
        "".to_owned(),
        "auto".to_owned(),
        "local".to_owned(),
        "daemon".to_owned(),
        "unix://".to_owned(),
        format!("unix://{}", at("socket")),
        format!(
            "local?state={}&real={}&log={}",
            at("var"),
            at("store"),
            at("log")
        ),
    ];
    for uri in uris {
        let store = open(Some(&uri), &nix.settings()).unwrap();
        assert_eq!(store.store_dir(), &nix.store_dir());
        assert!(store.lookup(path.hash_part()).unwrap().is_some(), "{uri}");
        assert_eq!(
            store.tree(&path).unwrap().plan(4096).unwrap().nar_size(),
            120,
            "{uri}"
        );
        assert_eq!(store.probe(), Ok(()));
    }
    let mut settings = nix.settings();
    settings.remote = Some("dummy://".to_owned());
    assert!(matches!(open(None, &settings), Err(OpenError::Uri { .. })));
    settings.remote = None;
    assert!(open(None, &settings).is_ok());
}

#[test]
fn a_store_below_a_root() {
    let nix = NixStore::new();
    let root = nix.join("root");
    let file = nix.join("a");
    std::fs::write(&file, "a").unwrap();
    // The logical store directory of this store is `/nix/store`.
    let mut command = std::process::Command::new("nix-store");
    command.arg("--store").arg(&root).arg("--add").arg(&file);
    command
        .env("NIX_CONF_DIR", nix.join("etc"))
        .env("HOME", nix.join("home"));
    for variable in [
        "NIX_STORE_DIR",
        "NIX_STATE_DIR",
        "NIX_LOG_DIR",
        "NIX_REMOTE",
    ] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let dir = samovar_nix::StoreDir::default();
    let path = samovar_nix::StorePath::parse(&dir, printed.trim()).unwrap();

    let settings = samovar_store::Settings::from_environment(|_| None).unwrap();
    for uri in [
        root.to_str().unwrap().to_owned(),
        format!("local?root={}", root.display()),
    ] {
        let store = open(Some(&uri), &settings).unwrap();
        assert_eq!(store.store_dir(), &dir);
        assert!(store.lookup(path.hash_part()).unwrap().is_some());
        assert_eq!(
            store.tree(&path).unwrap().plan(4096).unwrap().nar_size(),
            120
        );
    }
}

#[test]
fn a_missing_store() {
    let nix = NixStore::new();
    for uri in ["auto", "local", "daemon"] {
        let error = open(Some(uri), &nix.settings()).unwrap_err();
        let is_missing = |error: &OpenError| matches!(error, OpenError::Unavailable { .. });
        check_message(
            error,
            is_missing,
            &["db.sqlite", "NIX_STATE_DIR", "nix-daemon"],
        );
    }
}

#[test]
fn a_named_store_is_never_substituted() {
    let nix = NixStore::new();
    nix.add_text("a", "a");
    let _running = nix.daemon();
    // The daemon listens at the default path, which the environment does not name.
    let mut settings = nix.settings();
    settings.daemon_socket = None;
    std::fs::create_dir_all(nix.join("var/daemon-socket")).unwrap();
    std::os::unix::fs::symlink(nix.join("socket"), nix.join("var/daemon-socket/socket")).unwrap();
    let typo = nix.join("typo").to_str().unwrap().to_owned();
    for uri in [
        typo.clone(),
        format!("local://{typo}"),
        format!("local?root={typo}"),
        format!("local?state={typo}/nix/var/nix"),
    ] {
        let error = open(Some(&uri), &settings).unwrap_err();
        let is_missing = |error: &OpenError| matches!(error, OpenError::Unavailable { .. });
        let socket = format!("{typo}/nix/var/nix/daemon-socket/socket");
        check_message(error, is_missing, &[&socket]);
    }
    // A daemon below the same state directory serves the same store, so it is used.
    let uri = format!("local?state={typo}&real={}", nix.join("store").display());
    assert!(open(Some(&uri), &settings).is_err());
    std::fs::create_dir_all(nix.join("typo/daemon-socket")).unwrap();
    std::os::unix::fs::symlink(nix.join("socket"), nix.join("typo/daemon-socket/socket")).unwrap();
    assert!(open(Some(&uri), &settings).is_ok());
    // A daemon named by the environment is asked, too, but does not replace the files.
    let error = open(Some(&typo), &nix.settings()).unwrap_err();
    let is_no_files = |error: &OpenError| matches!(error, OpenError::NoFiles { .. });
    check_message(error, is_no_files, &[&typo]);
}

#[test]
fn missing_files() {
    let place = Rows::new(Journal::Wal);
    let nix = NixStore::new();
    let at = |name: &str| place.dir().join(name).display().to_string();
    let is_no_files = |error: &OpenError| matches!(error, OpenError::NoFiles { .. });
    for kind in ["local", "daemon"] {
        let uri = format!("{kind}?state={}&real={}", at("var"), at("store"));
        let error = open(Some(&uri), &nix.settings()).unwrap_err();
        check_message(error, is_no_files, &[&at("store"), "NIX_STORE_DIR"]);
        std::fs::create_dir(place.dir().join("store")).unwrap();
        assert!(open(Some(&uri), &nix.settings()).is_ok());
        std::fs::remove_dir(place.dir().join("store")).unwrap();
    }
}

#[test]
fn an_unsupported_schema() {
    let place = Rows::new(Journal::Wal);
    std::fs::write(place.dir().join("var/db/schema"), "11").unwrap();
    let sql = "alter table ValidPaths rename column sigs to signatures";
    place.writer().execute_batch(sql).unwrap();
    let uri = format!("local?state={}", place.dir().join("var").display());
    let settings = NixStore::new().settings();
    let error = open(Some(&uri), &settings).unwrap_err();
    let is_schema = |error: &OpenError| matches!(error, OpenError::Unavailable { .. });
    check_message(
        error,
        is_schema,
        &["db.sqlite", "ValidPaths.sigs", "schema is 11"],
    );
}

#[test]
fn a_file_that_is_not_a_database() {
    let place = Rows::new(Journal::Wal);
    std::fs::write(
        place.database(),
        "this is no database at all, and a long text, too, so long \
        that it could hold the header of one",
    )
    .unwrap();
    let uri = format!("local?state={}", place.dir().join("var").display());
    let settings = NixStore::new().settings();
    let error = open(Some(&uri), &settings).unwrap_err();
    let is_database = |error: &OpenError| matches!(error, OpenError::Database { .. });
    check_message(error, is_database, &["db.sqlite"]);
}

#[test]
fn unsupported_store_types() {
    let settings = NixStore::new().settings();
    for uri in [
        "https://cache.nixos.org",
        "s3://bucket",
        "ssh://host",
        "dummy://",
    ] {
        let error = open(Some(uri), &settings).unwrap_err();
        let OpenError::Uri { source, .. } = error else {
            panic!("{error:?}")
        };
        assert!(
            source
                .to_string()
                .contains("is not supported: use auto, daemon, local")
        );
    }
}
