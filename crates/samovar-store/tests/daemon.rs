//! The client of the worker protocol works with a real daemon, and fails cleanly with a faulty one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Read;

use samovar_store::{
    Daemon, LocalStore, Location, Realisation, Store, StoreError, Tree, Unavailable, open,
};
use support::{NixStore, absent};

fn daemon(nix: &NixStore) -> Daemon {
    let silence_max = std::time::Duration::from_secs(3);
    Daemon::with_silence_max(nix.join("socket"), nix.store_dir(), silence_max)
}

fn nar(tree: &Tree) -> Vec<u8> {
    let mut nar = Vec::new();
    tree.nar().unwrap().read_to_end(&mut nar).unwrap();
    nar
}

fn tree_of_files(nix: &NixStore) -> samovar_nix::StorePath {
    let dir = nix.join("tree");
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("sub/file"), vec![b'x'; 300_000]).unwrap();
    std::os::unix::fs::symlink("sub", dir.join("link")).unwrap();
    nix.add(&dir)
}

#[test]
fn daemon_and_database_agree() {
    let nix = NixStore::new();
    let path = tree_of_files(&nix);
    let _running = nix.daemon();
    let daemon = daemon(&nix);
    let info = daemon.lookup(path.hash_part()).unwrap();
    let mut expected = nix.open().lookup(path.hash_part()).unwrap().unwrap();
    // The protocol does not transmit the row id of the registration.
    expected.registration = None;
    assert_eq!(info, Some(expected));
    assert!(info.is_some());
    assert_eq!(daemon.is_valid(&path), Ok(true));
    assert_eq!(daemon.lookup(absent()), Ok(None));
    let other = nix.parse(&nix.full(&path).replace("-tree", "-other"));
    assert_eq!(daemon.is_valid(&other), Ok(false));
}

#[test]
fn answers_are_fresh_on_one_connection() {
    let nix = NixStore::new();
    // Nix fails if two processes create the directories of a store at the same time.
    let path = nix.add_text("a", "a");
    let _running = nix.daemon();
    let daemon = daemon(&nix);
    for _ in 0..3 {
        assert!(daemon.lookup(path.hash_part()).unwrap().is_some());
        nix.delete(&path);
        assert_eq!(daemon.lookup(path.hash_part()), Ok(None));
        assert_eq!(nix.add_text("a", "a"), path);
    }
}

#[test]
fn a_restarted_daemon() {
    let nix = NixStore::new();
    let path = nix.add_text("a", "a");
    let running = nix.daemon();
    let daemon = daemon(&nix);
    assert!(daemon.lookup(path.hash_part()).unwrap().is_some());
    // Processes that serve connections outlive the listening one, so end them too.
    running.end_with_children();
    let unreachable = Err(StoreError::Unavailable(Unavailable::DaemonUnreachable));
    assert_eq!(daemon.lookup(path.hash_part()), unreachable);
    let _running = nix.daemon();
    assert!(daemon.lookup(path.hash_part()).unwrap().is_some());
}

#[test]
fn temp_roots_protect_paths() {
    let nix = NixStore::new();
    // Use more paths than fit into one batch, and one path that is not valid.
    let paths: Vec<_> = (0..50)
        .map(|number| nix.add_text("a", &number.to_string()))
        .collect();
    // The name of the store's directory may contain `-a`, too.
    let full = nix.full(&paths[0]);
    let other = nix.parse(&format!("{}-other", full.strip_suffix("-a").unwrap()));
    let _running = nix.daemon();
    let daemon = daemon(&nix);
    let mut roots = daemon.temp_roots().unwrap();
    assert_eq!(roots.is_valid(&paths[0]), Ok(true));
    assert_eq!(roots.is_valid(&other), Ok(false));
    let kept = &paths[..49];
    for _ in 0..2 {
        roots.ask(kept.iter().chain([&other])).unwrap();
        for _ in 0..=kept.len() {
            assert_eq!(roots.answer(), Ok(true));
        }
    }
    assert!(!roots.has_answer());
    let collect = || nix.nix("nix-store", &["--gc"]);
    collect();
    assert!(kept.iter().all(|path| daemon.is_valid(path) == Ok(true)));
    assert_eq!(daemon.is_valid(&paths[49]), Ok(false));
    drop(roots);
    // The daemon process may notice the closed connection late.
    testkit::eventually("the path is collected", || {
        collect();
        daemon.is_valid(&paths[0]) == Ok(false)
    });
}

#[test]
fn a_daemon_without_realisations_is_queried_once() {
    let nix = NixStore::new();
    let path = nix.add_text("a", "a");
    let _running = nix.daemon();
    let daemon = daemon(&nix);
    let text = format!("sha256:{}!out", "0".repeat(64));
    let id = samovar_store::RealisationId::parse_hash_form(&text).unwrap();
    assert_eq!(daemon.realisation(&id), Ok(None));
    assert_eq!(daemon.realisation(&id), Ok(None));
    let drv = "0123456789abcdfghijklmnpqrsvwxyz-x.drv";
    let id = samovar_store::RealisationId::parse_derivation_form(drv, "out").unwrap();
    assert_eq!(daemon.realisation(&id), Ok(None));
    assert_eq!(daemon.is_valid(&path), Ok(true));
}

#[test]
fn one_closed_connection_is_retried() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let integers = |values: &[u64]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let last = 0x616c_7473;
    let greeting = integers(&[0x6478_696f, 0x100 | 31, last]);
    // A list of one string, which has eight bytes.
    let document = [integers(&[last, 1, 8]), b"document".to_vec()].concat();
    // `None` closes the connection; an empty response is silence.
    let answers = [None, Some(document), None, None, Some(Vec::new())];
    let daemon = |milliseconds| {
        let silence_max = std::time::Duration::from_millis(milliseconds);
        Daemon::with_silence_max(
            socket.clone(),
            samovar_nix::StoreDir::default(),
            silence_max,
        )
    };
    let text = format!("sha256:{}!out", "0".repeat(64));
    let id = samovar_store::RealisationId::parse_hash_form(&text).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            answers.map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&greeting).unwrap();
                match answer {
                    Some(answer) => stream.write_all(&answer).unwrap(),
                    None => stream.shutdown(std::net::Shutdown::Write).unwrap(),
                }
                stream
            })
        });
        let restarted = daemon(60_000);
        assert_eq!(restarted.realisation(&id), Ok(Some("document".to_owned())));
        assert_eq!(restarted.realisation(&id), Ok(None));
        assert_eq!(restarted.realisation(&id), Ok(None));
        let silent = daemon(200);
        let timeout = Err(StoreError::Unavailable(Unavailable::DaemonTimeout));
        assert_eq!(silent.realisation(&id), timeout);
        let _streams = server.join().unwrap();
        // Remove the socket, so that a new connection would fail.
        std::fs::remove_file(&socket).unwrap();
        assert_eq!(silent.realisation(&id), timeout);
        assert_eq!(restarted.realisation(&id), Ok(None));
    });
}

#[test]
fn the_daemon_and_the_database_give_the_same_realisation() {
    let nix = NixStore::new();
    std::fs::write(
        nix.join("etc/nix.conf"),
        "experimental-features = ca-derivations\n",
    )
    .unwrap();
    let path = nix.add_text("a", "a");
    let _running = nix.daemon();
    let daemon = daemon(&nix);
    let hash = format!("sha256:{}", "0".repeat(64));
    let id = samovar_store::RealisationId::parse_hash_form(&format!("{hash}!out")).unwrap();
    assert_eq!(daemon.realisation(&id), Ok(None));
    // Write directly: the daemon has created the tables.
    let writer = rusqlite::Connection::open(nix.database()).unwrap();
    for (output, signatures) in [("out", "b:sig a:sig"), ("dev", "")] {
        writer
            .execute(
                "insert into Realisations (drvPath, outputName, outputPath, signatures) \
                 values (?, ?, (select id from ValidPaths where path = ?), ?)",
                rusqlite::params![hash, output, nix.full(&path), signatures],
            )
            .unwrap();
    }
    writer
        .execute("insert into RealisationsRefs values (1, 2)", [])
        .unwrap();
    let document = daemon.realisation(&id).unwrap();
    assert!(document.is_some());
    let realisation = nix.open().realisation(&id);
    let served = realisation.map(|one| one.map(Realisation::into_document));
    assert_eq!(served, Ok(document));
}

#[test]
fn a_socket_below_a_path_too_long_for_an_address() {
    let nix = NixStore::new();
    let path = nix.add_text("a", "a");
    let _running = nix.daemon();
    let deep = nix.join("long".repeat(30));
    std::fs::create_dir(&deep).unwrap();
    std::os::unix::fs::symlink(nix.join("socket"), deep.join("socket")).unwrap();
    let daemon = Daemon::new(deep.join("socket"), nix.store_dir());
    assert_eq!(daemon.is_valid(&path), Ok(true));
}

#[test]
fn the_daemon_answers_until_the_database_is_readable() {
    let nix = NixStore::new();
    let path = tree_of_files(&nix);
    let _running = nix.daemon();
    let away = nix.join("away");
    std::fs::rename(nix.database(), &away).unwrap();
    // Open the store while the database exists: without it the daemon's processes would fail too.
    std::fs::rename(&away, nix.database()).unwrap();
    let store = open(Some("daemon"), &nix.settings()).unwrap();
    assert!(store.lookup(path.hash_part()).unwrap().is_some());
    assert!(store.catalog().unwrap().load().is_ok());
    assert!(nar(&store.tree(&path).unwrap()) == nix.dump(&path));
}

#[test]
fn metadata_from_the_daemon_and_local_files() {
    let nix = NixStore::new();
    let path = tree_of_files(&nix);
    let _running = nix.daemon();
    let location = Location {
        state_dir: "/nonexistent/state".into(),
        ..nix.location()
    };
    let store = LocalStore::new(location).unwrap();
    assert!(store.lookup(path.hash_part()).unwrap().is_some());
    assert!(store.catalog().unwrap().load().is_err());
    assert_eq!(store.probe(), Ok(()));
    assert!(store.is_left_to_daemon());
    let whole = nix.open();
    assert_eq!(whole.probe(), Ok(()));
    assert!(!whole.is_left_to_daemon());
    let catalog = whole.catalog().unwrap();
    assert_eq!(catalog.load_time(), None);
    catalog.load().unwrap();
    assert!(catalog.load_time().is_some());
}

#[test]
fn a_hostile_or_silent_daemon() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let daemon = Daemon::new(socket, samovar_nix::StoreDir::default());
    let magic = 0x6478_696f_u64.to_le_bytes();
    let version = |minor: u64| (0x100 | minor).to_le_bytes();
    let last = 0x616c_7473_u64.to_le_bytes();
    let huge = u64::MAX.to_le_bytes();
    let answers: [Vec<u8>; 8] = [
        vec![],
        vec![0; 16],
        [magic, version(19)].concat(),
        [magic, 0x200_u64.to_le_bytes()].concat(),
        // An endless list of features, and an endless version string.
        [magic, version(38), huge].concat(),
        [magic, version(34), huge].concat(),
        // An unknown message, and a log line whose length exceeds all memory.
        [magic, version(21), 7_u64.to_le_bytes()].concat(),
        [
            magic,
            version(21),
            last,
            0x6f6c_6d67_u64.to_le_bytes(),
            huge,
        ]
        .concat(),
    ];
    for answer in answers {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                // Ignore errors: the client may close the connection before it has read everything.
                let _sent = stream.write_all(&answer);
                let _closed = stream.shutdown(std::net::Shutdown::Write);
                let _read = stream.read_to_end(&mut Vec::new());
            });
            let result = daemon.lookup(absent());
            assert!(
                matches!(result, Err(StoreError::Protocol(_))),
                "{answer:?}: {result:?}"
            );
        });
    }
}
