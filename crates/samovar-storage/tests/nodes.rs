//! Nodes with one database answer as one: what one has acknowledged, all others find, and none says
//! that a path is absent which is there. Tests with a real PostgreSQL and a real S3 engine; the
//! nodes are storages of one process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_tokens;

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_bucket::{CredentialSource, FixedCredentials, Settings};
use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::metadata::{Published, StoredPath, tokens};
use samovar_storage::nodes::{self, Membership, NodeSettings};
use samovar_storage::token::{Token, now};
use samovar_storage::verify::Unlimited;
use samovar_storage::{
    BucketLocation, Location, PostgresSettings, Storage, StorageError, StoredCache, nar, narinfo,
    open_database,
};
use sha2::{Digest, Sha256};
use support_tokens::add_token;
use testkit::eventually;
use testkit::postgres::Postgres;
use testkit::s3::S3Engine;

const TOKEN: &str = "smv1_a";

/// A database and a bucket for some nodes.
struct Place {
    postgres: Postgres,
    engine: S3Engine,
}

/// A node. Its membership ends first.
struct Node {
    membership: Option<Membership>,
    cache: StoredCache,
    _storage: Arc<Storage>,
    _dir: tempfile::TempDir,
}

impl Place {
    /// Returns `None` if no engine or no PostgreSQL is installed.
    fn new() -> Option<Self> {
        let engine = S3Engine::start()?;
        if !Postgres::is_installed() {
            return None;
        }
        let place = Self {
            postgres: Postgres::with_settings(&["fsync=off"]),
            engine,
        };
        let dir = tempfile::tempdir().unwrap();
        let database = open_database(place.location(&dir)).unwrap();
        add_token(&database, "tests", TOKEN);
        Some(place)
    }

    fn location(&self, dir: &tempfile::TempDir) -> Location {
        let mut settings = Settings::parse(&self.engine.url()).unwrap();
        settings.credentials = CredentialSource::Fixed(FixedCredentials {
            key_id: testkit::s3::ACCESS_KEY.to_owned(),
            secret: testkit::s3::SECRET_KEY.to_owned(),
            token: None,
        });
        let bucket = BucketLocation {
            settings,
            cache_len_max: 1 << 30,
            redirect_over: None,
            packs: true,
        };
        let database = PostgresSettings::parse(&self.postgres.url()).unwrap();
        Location::new(dir.path())
            .with_bucket(Some(bucket))
            .with_database(Some(database))
    }

    /// Starts a node, and waits until it answers from memory.
    fn node(&self, name: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(self.location(&dir), &StoreDir::default()).unwrap();
        let cache = storage.cache("default", false).unwrap();
        let settings = NodeSettings {
            name: name.to_owned(),
            version: "1".to_owned(),
            host: "here".to_owned(),
            address: None,
        };
        let node = Node {
            membership: nodes::join(&storage, settings, None).unwrap(),
            cache,
            _storage: storage,
            _dir: dir,
        };
        assert!(node.membership.is_some());
        eventually("the node answers from memory", || node.has_lease());
        node
    }
}

impl Node {
    fn has_lease(&self) -> bool {
        !self.cache.may_contain(path(u32::MAX).hash_part())
    }

    fn token(&self) -> Token {
        self.cache
            .authorize(TOKEN.as_bytes(), now())
            .unwrap()
            .unwrap()
    }

    fn send(&self, upload: &Upload) {
        let mut body = upload.nar.as_slice();
        let (cache, token) = (&self.cache, self.token());
        nar::put(cache, &token, &upload.name, &mut body, &mut Unlimited).unwrap();
    }

    fn publish(&self, number: u32, upload: &Upload) {
        // As a request that may wait for the database.
        let _patience = self.cache.start_patience();
        let text = text(&path(number), upload);
        let hash_part = path(number).hash_part();
        let (cache, token) = (&self.cache, self.token());
        let is_elsewhere = |_: &StorePath| false;
        let put = narinfo::put(
            cache,
            &token,
            hash_part,
            text.as_bytes(),
            &is_elsewhere,
            &render,
        );
        assert_eq!(put.unwrap().1, Published::New);
    }

    fn finds(&self, number: u32) -> Result<bool, StorageError> {
        let found = self.cache.lookup(path(number).hash_part())?;
        Ok(found.is_some())
    }
}

fn path(number: u32) -> StorePath {
    let mut bytes = [7; 20];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    let hash_part = HashPart::from_bytes(bytes);
    StorePath::from_base_name(&format!("{hash_part}-path")).unwrap()
}

/// An uncompressed NAR of one file.
struct Upload {
    nar: Vec<u8>,
    name: FileName,
}

fn upload() -> Upload {
    let mut nar = Vec::new();
    let mut encoder = Encoder::new();
    encoder.begin(&mut nar).unwrap();
    encoder.file(&mut nar, false, 5).unwrap();
    nar.extend_from_slice(b"hello");
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
    let hash = String::from_utf8(hash.nixbase32().to_vec()).unwrap();
    let name = FileName::parse(format!("{hash}.nar").as_bytes()).unwrap();
    Upload { nar, name }
}

fn text(path: &StorePath, upload: &Upload) -> String {
    let hash = NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    format!(
        "StorePath: /nix/store/{}\nURL: nar/{}\nCompression: none\nNarHash: {hash}\nNarSize: {}\n\
         References: \n",
        path.base_name(),
        upload.name,
        upload.nar.len(),
    )
}

fn render(path: &StoredPath) -> Vec<u8> {
    let mut text = Vec::new();
    path.narinfo()
        .write(&StoreDir::default(), &mut text)
        .unwrap();
    text
}

#[test]
fn what_one_node_has_acknowledged_all_find() {
    let Some(place) = Place::new() else {
        return;
    };
    let nodes = [place.node("a"), place.node("b"), place.node("c")];
    let upload = upload();
    nodes[0].send(&upload);
    let started = Instant::now();
    let count = 300;
    let mut from_memory = 0;
    for number in 0..count {
        nodes[number as usize % 3].publish(number, &upload);
        for node in &nodes {
            assert!(node.finds(number).unwrap(), "path {number}");
            from_memory += u32::from(node.has_lease());
        }
    }
    println!("{count} paths on 3 nodes: {:?}", started.elapsed());
    // On a slow machine a lease may end now and then.
    assert!(from_memory > count);
    let listed = nodes::list(nodes[1].cache.metadata()).unwrap();
    let names: Vec<&str> = listed.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["a", "b", "c"]);

    // A token that is revoked on one node is refused by the others at once.
    assert_eq!(
        tokens::revoke(nodes[0].cache.metadata(), "tests").unwrap(),
        1
    );
    for node in &nodes {
        assert!(
            node.cache
                .authorize(TOKEN.as_bytes(), now())
                .unwrap()
                .is_err()
        );
    }
}

#[test]
fn a_node_that_has_left_or_ended_delays_nobody_for_long() {
    let Some(place) = Place::new() else {
        return;
    };
    let (node, mut other) = (place.node("a"), place.node("b"));
    let upload = upload();
    node.send(&upload);
    other.membership = None;
    assert!(!other.has_lease());
    // Without a lease, the node asks the database.
    node.publish(1, &upload);
    assert!(other.finds(1).unwrap());
    assert!(!other.finds(2).unwrap());

    // The row of a node that was killed.
    let mut client = place.postgres.client();
    client
        .batch_execute(
            "insert into samovar.node (name, version, seen, joined_at, renewed_at) \
             values ('dead', '1', 0, 0, 0)",
        )
        .unwrap();
    let started = Instant::now();
    node.publish(2, &upload);
    assert!(started.elapsed() < Duration::from_secs(20));
    eventually("the row has lapsed", || {
        let listed = nodes::list(node.cache.metadata()).unwrap();
        listed
            .iter()
            .any(|node| node.name == "dead" && !node.has_lease)
    });
    node.publish(3, &upload);
    assert!(other.finds(3).unwrap());
}

#[test]
fn while_the_database_is_away_only_known_paths_are_answered() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let nodes = [place.node("a"), place.node("b")];
    let upload = upload();
    nodes[0].send(&upload);
    nodes[0].publish(1, &upload);
    nodes[0].publish(2, &upload);
    assert!(nodes[1].finds(1).unwrap());
    place.postgres.kill();
    eventually("the leases end", || {
        nodes.iter().all(|node| !node.has_lease())
    });
    // Path 1 was looked up before, on this node.
    assert!(nodes[1].finds(1).unwrap());
    for number in [2, 3] {
        let error = nodes[1].finds(number).unwrap_err();
        assert!(matches!(error, StorageError::Unavailable(_)), "{error}");
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        // This waits until the database is back, and then until no lease of an earlier generation
        // can live.
        let publishing = scope.spawn(|| nodes[0].publish(4, &upload));
        place.postgres.resume();
        publishing.join().unwrap();
    });
    assert!(started.elapsed() > Duration::from_secs(2));
    assert!(nodes[1].finds(4).unwrap());
    eventually("the nodes join again", || nodes.iter().all(Node::has_lease));
    assert!(nodes.iter().all(|node| node.finds(2).unwrap()));
    assert!(!nodes[1].finds(3).unwrap());
}
