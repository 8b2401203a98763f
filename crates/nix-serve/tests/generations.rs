//! A store is served right whichever version of Nix has made it, keeps its database, and runs its
//! daemon.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use support::client::succeeds;
use support::daemon::NixDaemon;
use support::{
    Nix, OwnStore, ServerProcess, eventually, key_pair, local, nix_serve, of_sample, sample,
};
use support_process::Shell;
use testkit::sqlite::run as sqlite;

/// Derivation with two outputs and a source.
const DERIVATION: &str = "derivation { \
    name = \"made\"; system = \"x\"; builder = \"/bin/sh\"; outputs = [ \"out\" \"dev\" ]; \
    src = builtins.toFile \"text\" \"text\"; }";

/// Features of Nix that the tests of realisations need.
const FEATURES: &str = "experimental-features = nix-command ca-derivations\n\
                        build-users-group =\nsandbox = false\n";

/// A store with all kinds of paths, and what Nix says about them.
struct Filled {
    store: OwnStore,
    /// Every valid path with the fields of its narinfo, according to Nix.
    registered: Vec<(String, Fields)>,
    /// URL path of a realisation, and its JSON document.
    realisation: (String, String),
}

/// Fields of a narinfo, in its format.
#[derive(Debug, PartialEq, Eq)]
struct Fields {
    hash: String,
    size: String,
    references: String,
    deriver: Option<String>,
    signature_count: usize,
}

impl Filled {
    /// Makes and fills a store with this version of Nix. Paths that are not content-addressed, and
    /// a realisation, come from a server of the sample store.
    #[track_caller]
    fn new(nix: &Nix) -> Self {
        let store = OwnStore::of(nix.clone());
        let sources = tempfile::tempdir().unwrap();
        let tree = sources.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "content").unwrap();
        symlink("file", tree.join("link")).unwrap();
        let (tree, file) = (tree.to_str().unwrap(), format!("{tree:?}/file"));
        let file = file.replace('"', "");
        store.run("nix-store", &["--add", tree]);
        store.run("nix-store", &["--add-fixed", "sha256", &file]);
        store.run("nix-store", &["--add-fixed", "--recursive", "sha1", &file]);
        store.run("nix-instantiate", &["--expr", DERIVATION]);

        let (secret, public) = key_pair(sources.path(), "sample-1");
        let origin = ServerProcess::start(of_sample().env("NIX_SECRET_KEY_FILE", secret));
        let mut realise = store.command("nix-store");
        realise.env("NIX_CONFIG", FEATURES).arg("--realise");
        realise.args([sample("ca_drv"), sample("self_reference"), sample("built")]);
        realise.args(["--option", "max-jobs", "0", "--option", "substituters"]);
        realise.args([&origin.url(), "--option", "trusted-public-keys", &public]);
        // The server does not sign realisations.
        succeeds(realise.args(["--option", "require-sigs", "false"]));
        let (other, _) = key_pair(sources.path(), "other-1");
        let other = other.to_str().unwrap();
        let built = sample("built");
        store.run("nix", &["store", "sign", "--key-file", other, &built]);

        let database = store.database();
        let id = sqlite(
            &database,
            "select drvPath || '!' || outputName from Realisations",
        );
        let realisation = format!("/realisations/{id}.doi");
        let document = origin.get(&realisation);
        assert_eq!(document.status, 200, "{id}");
        let registered = registrations(&store);
        assert!(registered.len() > 8, "{registered:#?}");
        Self {
            realisation: (realisation, document.text()),
            registered,
            store,
        }
    }

    /// Returns the command of a server that leases no paths, so that they can be deleted.
    fn server(&self) -> Command {
        let mut command = nix_serve();
        command.args(["--store", &local(self.store.root()), "--gc-lease", "off"]);
        command
    }

    /// Checks that the narinfos and the realisation of a server match what Nix says, and that it
    /// sends every NAR. The server compares the NAR's hash.
    #[track_caller]
    fn is_served(&self, server: &ServerProcess) {
        for (path, expected) in &self.registered {
            let narinfo = server.narinfo(path);
            assert_eq!(narinfo.status, 200, "{path}: {}", narinfo.text());
            assert_eq!(&fields(&narinfo.text()), expected, "{path}");
            let nar = server.get(&server.nar_url(path));
            assert!(nar.status == 200 && nar.is_complete, "{path}");
            assert!(
                nar.body == self.store.dump(&self.store.real(path)),
                "{path}"
            );
        }
        let (url, document) = &self.realisation;
        assert_eq!(server.get(url).text(), *document);
        let absent = format!("/{}.narinfo", "z".repeat(32));
        assert_eq!(server.get(&absent).status, 404);
    }

    /// Checks that a server notices new and deleted paths at once.
    #[track_caller]
    fn changes_are_seen(&self, server: &ServerProcess) {
        let path = self.store.add_file("later", b"later");
        eventually("the new path is served", || {
            server.narinfo(&path).status == 200
        });
        self.store.run("nix-store", &["--delete", &path]);
        assert_eq!(server.narinfo(&path).status, 404);
    }
}

/// Returns what Nix says about all valid paths of a store.
#[track_caller]
fn registrations(store: &OwnStore) -> Vec<(String, Fields)> {
    let base_name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let dump = store.run("nix-store", &["--dump-db"]);
    let mut lines = dump.lines();
    let mut registered = Vec::new();
    while let Some(path) = lines.next() {
        // The hash is in base 16, unlike that of narinfos.
        let _hash = lines.next();
        let [size, deriver, count] = [0; 3].map(|_| lines.next().unwrap().to_owned());
        let references = lines.by_ref().take(count.parse().unwrap());
        let mut references: Vec<_> = references.map(base_name).collect();
        references.sort();
        let fields = Fields {
            hash: String::new(),
            size,
            references: references.join(" "),
            deriver: Some(base_name(&deriver)).filter(|name| !name.is_empty()),
            signature_count: 0,
        };
        registered.push((path.to_owned(), fields));
    }
    let mut query = vec!["--query", "--hash"];
    query.extend(registered.iter().map(|(path, _)| &**path));
    let hashes = store.run("nix-store", &query);
    let signatures = "select sigs from ValidPaths where path = ";
    for ((path, fields), hash) in registered.iter_mut().zip(hashes.lines()) {
        fields.hash = hash.to_owned();
        let signatures = sqlite(&store.database(), &format!("{signatures} '{path}'"));
        fields.signature_count = signatures.split_whitespace().count();
    }
    registered
}

/// Parses the narinfo of a server without a key.
#[track_caller]
fn fields(narinfo: &str) -> Fields {
    let field = |name: &str| {
        let mut values = narinfo.lines().filter_map(|line| line.strip_prefix(name));
        values.next().map(str::to_owned)
    };
    Fields {
        hash: field("NarHash: ").unwrap(),
        size: field("NarSize: ").unwrap(),
        // The line is absent if there are none.
        references: field("References: ").unwrap_or_default(),
        deriver: field("Deriver: "),
        signature_count: narinfo.matches("\nSig: ").count(),
    }
}

/// The states of the journal: as Nix leaves it when it ends, with a WAL that another process has
/// open, and while the daemon has the database open.
#[test]
fn databases_are_read_in_every_state_of_the_journal() {
    for nix in Nix::all() {
        let filled = Filled::new(&nix);
        let server = ServerProcess::start(&mut filled.server());
        filled.is_served(&server);
        filled.changes_are_seen(&server);
        drop(server);

        let holder = Shell::open(&filled.store.database(), "begin; select 1 from ValidPaths;");
        filled.changes_are_seen(&ServerProcess::start(&mut filled.server()));
        drop(holder);

        let daemon = NixDaemon::start(&filled.store);
        let server = ServerProcess::start(&mut filled.server());
        filled.changes_are_seen(&server);
        daemon.end_with_children();
        filled.is_served(&server);
        let log = server.whole_log();
        assert!(!log.iter().any(|line| line.contains("schema")), "{log:#?}");
    }
}

/// Nix locks a database without a WAL by files of its own.
#[test]
fn databases_without_a_wal_are_read() {
    for nix in Nix::all() {
        let dir = tempfile::tempdir().unwrap();
        let store = OwnStore { dir, nix };
        let without = ["--option", "use-sqlite-wal", "false"];
        let add = |name: &str| {
            let file = store.root().join(name);
            fs::write(&file, name).unwrap();
            let file = file.to_str().unwrap();
            let path = store.run("nix-store", &[&without[..], &["--add", file]].concat());
            path.trim().to_owned()
        };
        let before = add("before");
        let mut command = nix_serve();
        command.env("NIX_CONFIG", "use-sqlite-wal = false");
        command.args(["--store", &local(store.root())]);
        let server = ServerProcess::start(&mut command);
        assert_eq!(server.narinfo(&before).status, 200);
        let later = add("later");
        assert_eq!(server.narinfo(&later).status, 200);
        let deletion = [&without[..], &["--delete", &later]].concat();
        store.run("nix-store", &deletion);
        assert_eq!(server.narinfo(&later).status, 404);
        let mode = sqlite(&store.database(), "pragma journal_mode");
        assert_ne!(mode, "wal", "{}", store.nix.version());
    }
}

/// A server that cannot read the database gets everything from the daemon: path infos, validity and
/// realisations.
#[test]
fn daemons_answer_in_place_of_the_database() {
    for nix in Nix::all() {
        let filled = Filled::new(&nix);
        let database = filled.store.database();
        // Nix can still read the database.
        let not_counted = "pragma writable_schema = on; update sqlite_master \
            set sql = replace(sql, ' autoincrement', '') where name = 'ValidPaths'";
        sqlite(&database, not_counted);
        let socket = NixDaemon::socket(&filled.store);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let mut daemon = nix.command("nix-daemon", filled.store.root());
        daemon.env("NIX_REMOTE", local(filled.store.root()));
        daemon.env("NIX_CONFIG", FEATURES);
        daemon.env("NIX_DAEMON_SOCKET_PATH", &socket);
        let _daemon = NixDaemon::listening(&mut daemon, &socket);
        let server = ServerProcess::start(&mut filled.server());
        filled.is_served(&server);
        filled.changes_are_seen(&server);
    }
}
