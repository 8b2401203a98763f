//! A path is visible if, and only if, its upload was acknowledged. The upload must be verified and
//! complete, with all references present and a token that may push.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_tokens;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::gc::Rules;
use samovar_storage::metadata::{Client, OWN_LEN, Published, StoredPath, tokens};
use samovar_storage::token::{Denied, Token, now};
use samovar_storage::verify::Unlimited;
use samovar_storage::{PutError, Refusal, Storage, StoredCache, open_database};
use samovar_storage::{logs, nar, narinfo};
use sha2::{Digest, Sha256};

const NOW: i64 = 1_800_000_000;

/// A client without a token, of a public cache.
const EVERYBODY: Client = Client {
    token: None,
    is_reader: true,
};
use support_tokens::add_token;

/// A storage with one cache and two tokens that may push.
struct Fixture {
    dir: tempfile::TempDir,
    cache: StoredCache,
    tokens: [Token; 2],
}

/// An uncompressed NAR of one file.
struct Upload {
    nar: Vec<u8>,
    name: FileName,
}

impl Fixture {
    fn new() -> Self {
        Self::with_rules(Rules::default())
    }

    fn with_rules(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = open_database(dir.path()).unwrap();
        for text in ["smv1_a", "smv1_b"] {
            add_token(&database, text, text);
        }
        let storage = Storage::with_rules(dir.path(), &StoreDir::default(), rules, now).unwrap();
        let cache = storage.cache("default", true).unwrap();
        let token = |text: &[u8]| cache.authorize(text, NOW).unwrap().unwrap();
        let tokens = [token(b"smv1_a"), token(b"smv1_b")];
        Self { dir, cache, tokens }
    }

    fn put(&self, token: usize, path: &StorePath, references: &[&StorePath]) -> Published {
        let upload = upload(path.name());
        self.send(token, &upload);
        let text = text(path, &upload, references);
        self.put_narinfo(token, path, &text).unwrap()
    }

    fn send(&self, token: usize, upload: &Upload) {
        let mut body = upload.nar.as_slice();
        let outcome = nar::put(
            &self.cache,
            &self.tokens[token],
            &upload.name,
            &mut body,
            &mut Unlimited,
        );
        outcome.unwrap();
    }

    fn put_narinfo(
        &self,
        token: usize,
        path: &StorePath,
        text: &str,
    ) -> Result<Published, PutError> {
        let is_elsewhere = |path: &StorePath| path.name() == "elsewhere";
        let outcome = narinfo::put(
            &self.cache,
            &self.tokens[token],
            path.hash_part(),
            text.as_bytes(),
            &is_elsewhere,
            &render,
        );
        outcome.map(|(_, published)| published)
    }

    #[track_caller]
    fn refused(&self, token: usize, path: &StorePath, text: &str) -> Refusal {
        match self.put_narinfo(token, path, text) {
            Err(PutError::Narinfo(refusal)) => *refusal,
            other => unreachable!("{other:?}"),
        }
    }
}

fn open(dir: &Path) -> StoredCache {
    let storage = Storage::open(dir, &StoreDir::default()).unwrap();
    storage.cache("default", true).unwrap()
}

fn render(path: &StoredPath) -> Vec<u8> {
    let mut text = Vec::new();
    path.narinfo()
        .write(&StoreDir::default(), &mut text)
        .unwrap();
    text
}

fn path(number: u8, name: &str) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-{name}")).unwrap()
}

fn upload(contents: &str) -> Upload {
    let mut nar = Vec::new();
    let mut encoder = Encoder::new();
    encoder.begin(&mut nar).unwrap();
    let len = contents.len() as u64;
    encoder.file(&mut nar, false, len).unwrap();
    nar.extend_from_slice(contents.as_bytes());
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
    let hash = String::from_utf8(hash.nixbase32().to_vec()).unwrap();
    let name = FileName::parse(format!("{hash}.nar").as_bytes()).unwrap();
    Upload { nar, name }
}

fn text(path: &StorePath, upload: &Upload, references: &[&StorePath]) -> String {
    let hash = NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    let references: Vec<_> = references.iter().map(|path| path.base_name()).collect();
    format!(
        "StorePath: /nix/store/{}\nURL: nar/{}\nCompression: none\nNarHash: {hash}\nNarSize: {}\n\
         References: {}\n",
        path.base_name(),
        upload.name,
        upload.nar.len(),
        references.join(" ")
    )
}

#[test]
fn an_acknowledged_path_is_found_also_after_a_restart() {
    let fixture = Fixture::new();
    let (lib, app) = (path(1, "lib"), path(2, "app"));
    assert_eq!(fixture.put(0, &lib, &[]), Published::New);
    assert_eq!(fixture.put(0, &app, &[&lib, &app]), Published::New);
    let Fixture { dir, cache, .. } = fixture;
    let before = cache.lookup(app.hash_part()).unwrap().unwrap();
    assert_eq!(before.references, [lib, app.clone()]);
    drop(cache);
    let cache = open(dir.path());
    assert!(cache.may_contain(app.hash_part()));
    assert!(!cache.may_contain(path(3, "x").hash_part()));
    assert_eq!(cache.lookup(app.hash_part()).unwrap(), Some(before));
    let mirrored = std::fs::read(dir.path().join(format!("{}.narinfo", app.hash_part())));
    assert!(mirrored.unwrap().starts_with(b"StorePath: "));
}

#[test]
fn a_path_needs_its_references() {
    let fixture = Fixture::new();
    let (lib, app) = (path(1, "lib"), path(2, "app"));
    let upload = upload("app");
    fixture.send(0, &upload);
    let narinfo = text(&app, &upload, &[&lib]);
    let missing = Refusal::MissingReference {
        reference: lib.clone(),
        path: app.clone(),
    };
    assert_eq!(fixture.refused(0, &app, &narinfo), missing);
    assert_eq!(fixture.cache.lookup(app.hash_part()).unwrap(), None);
    // Another path with the same hash part does not count as the reference.
    fixture.put(0, &path(1, "other"), &[]);
    assert_eq!(fixture.refused(0, &app, &narinfo), missing);
    let elsewhere = path(3, "elsewhere");
    let narinfo = text(&app, &upload, &[&elsewhere]);
    let published = fixture.put_narinfo(0, &app, &narinfo);
    assert_eq!(published.unwrap(), Published::New);
    let stored = fixture.cache.lookup(app.hash_part()).unwrap().unwrap();
    assert_eq!(stored.references, [elsewhere]);
}

#[test]
fn a_file_that_another_token_has_sent_is_as_if_absent() {
    let fixture = Fixture::new();
    let (secret, thief) = (path(1, "secret"), path(2, "thief"));
    let upload = upload("secret");
    fixture.send(0, &upload);
    let visible = |token: Option<&Token>| {
        let client = token.map_or(EVERYBODY, Client::from);
        let opened = fixture.cache.open_file(client, &upload.name);
        opened.unwrap().is_some()
    };
    assert!(visible(Some(&fixture.tokens[0])));
    assert!(!visible(Some(&fixture.tokens[1])) && !visible(None));
    let narinfo = text(&thief, &upload, &[]);
    let refusal = fixture.refused(1, &thief, &narinfo);
    assert_eq!(refusal, Refusal::UnknownFile(upload.name));
    // A client that uploads the file itself may use it, too.
    fixture.send(1, &upload);
    let published = fixture.put_narinfo(1, &thief, &narinfo);
    assert_eq!(published.unwrap(), Published::New);
    assert!(visible(None));
    let narinfo = text(&secret, &upload, &[]);
    let published = fixture.put_narinfo(0, &secret, &narinfo);
    assert_eq!(published.unwrap(), Published::New);
}

#[test]
fn the_first_nar_of_a_path_stays() {
    let fixture = Fixture::new();
    let app = path(1, "app");
    assert_eq!(fixture.put(0, &app, &[]), Published::New);
    assert_eq!(fixture.put(1, &app, &[]), Published::Known);
    let before = fixture.cache.lookup(app.hash_part()).unwrap();
    let other = upload("not reproducible");
    fixture.send(1, &other);
    let narinfo = text(&app, &other, &[]);
    let published = fixture.put_narinfo(1, &app, &narinfo);
    assert_eq!(published.unwrap(), Published::Conflict);
    assert_eq!(fixture.cache.lookup(app.hash_part()).unwrap(), before);
}

#[test]
fn signatures_are_added() {
    let fixture = Fixture::new();
    let app = path(1, "app");
    let upload = upload("app");
    fixture.send(0, &upload);
    let put = |name: &str| {
        let signature = format!("{}==", "A".repeat(86));
        let text = text(&app, &upload, &[]);
        let text = format!("{text}Sig: {name}:{signature}\n");
        fixture.put_narinfo(0, &app, &text).unwrap()
    };
    assert_eq!(put("a"), Published::New);
    assert_eq!(put("b"), Published::Known);
    assert_eq!(put("a"), Published::Known);
    let stored = fixture.cache.lookup(app.hash_part()).unwrap().unwrap();
    let names: Vec<_> = stored.signatures.iter().map(|one| one.key_name()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn a_revoked_token_publishes_nothing() {
    let fixture = Fixture::new();
    let app = path(1, "app");
    let upload = upload("app");
    fixture.send(0, &upload);
    let database = open_database(fixture.dir.path()).unwrap();
    assert_eq!(tokens::revoke(&database, "smv1_a").unwrap(), 1);
    assert_eq!(tokens::revoke(&database, "smv1_a").unwrap(), 0);
    let name = "smv1_a".to_owned();
    assert_eq!(
        fixture.cache.authorize(b"smv1_a", NOW).unwrap(),
        Err(Denied::Revoked { name })
    );
    let narinfo = text(&app, &upload, &[]);
    assert_eq!(fixture.refused(0, &app, &narinfo), Refusal::TokenInvalid);
    assert_eq!(fixture.cache.lookup(app.hash_part()).unwrap(), None);
}

#[test]
fn a_lost_file_is_replaced_by_the_next_upload() {
    let fixture = Fixture::new();
    let app = path(1, "app");
    fixture.put(0, &app, &[]);
    let upload = upload("app");
    let file = fixture.dir.path().join(format!("nar/{}", upload.name));
    std::fs::remove_file(&file).unwrap();
    let opened = fixture
        .cache
        .open_file((&fixture.tokens[0]).into(), &upload.name);
    assert!(opened.unwrap().is_none());
    fixture.send(0, &upload);
    assert_eq!(std::fs::read(file).unwrap(), upload.nar);
}

#[test]
fn a_second_process_asks_the_database_until_the_first_has_ended() {
    let fixture = Fixture::new();
    let second = open(fixture.dir.path());
    let app = path(1, "app");
    fixture.put(0, &app, &[]);
    assert!(second.may_contain(path(9, "absent").hash_part()));
    assert!(second.lookup(app.hash_part()).unwrap().is_some());
    drop(fixture.cache);
    let start = Instant::now();
    while second.may_contain(path(9, "absent").hash_part()) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    assert!(second.may_contain(app.hash_part()));
}

#[test]
fn paths_that_arrive_together_are_all_published() {
    let fixture = Arc::new(Fixture::new());
    let threads = (0..64).map(|number| {
        let fixture = Arc::clone(&fixture);
        std::thread::spawn(move || {
            let own = path(number, &format!("path-{number}"));
            assert_eq!(fixture.put(0, &own, &[]), Published::New);
            let found = fixture.cache.lookup(own.hash_part());
            assert!(found.unwrap().is_some());
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn files_of_a_token_that_no_path_uses_are_limited() {
    let uploads = ["a", "b", "c"].map(upload);
    let sizes = uploads
        .each_ref()
        .map(|upload| upload.nar.len() as u64 + OWN_LEN);
    let put = |fixture: &Fixture, token: usize, upload: &Upload| {
        let mut body = upload.nar.as_slice();
        let token = &fixture.tokens[token];
        nar::put(
            &fixture.cache,
            token,
            &upload.name,
            &mut body,
            &mut Unlimited,
        )
    };
    let limited = |loose_bytes_max| {
        let rules = Rules {
            loose_bytes_max,
            ..Rules::default()
        };
        Fixture::with_rules(rules)
    };
    let fixture = limited(sizes[0] + sizes[1]);
    put(&fixture, 0, &uploads[0]).unwrap();
    put(&fixture, 0, &uploads[1]).unwrap();
    let refused = |outcome| {
        matches!(outcome, Err(PutError::Narinfo(refusal))
            if matches!(*refusal, Refusal::TooManyLoose { .. }))
    };
    assert!(refused(put(&fixture, 0, &uploads[2])));
    put(&fixture, 0, &uploads[1]).unwrap();
    put(&fixture, 1, &uploads[2]).unwrap();
    // A file that a path uses does not count any more.
    let app = path(1, "app");
    let narinfo = text(&app, &uploads[0], &[]);
    fixture.put_narinfo(0, &app, &narinfo).unwrap();
    put(&fixture, 0, &upload("d")).unwrap();
    assert!(refused(put(&fixture, 0, &upload("e"))));

    let fixture = limited(sizes[0] + sizes[1] - 1);
    put(&fixture, 0, &uploads[0]).unwrap();
    assert!(refused(put(&fixture, 0, &uploads[1])));
}

/// Signatures that are added to a path count, too.
#[test]
fn signatures_added_to_a_path_are_limited() {
    let (known, file) = (path(1, "known"), upload("known"));
    let signature = format!("key-1:{}==", "A".repeat(86));
    let unsigned = text(&known, &file, &[]);
    let signed = format!("{unsigned}Sig: {signature}\n");
    let len = OWN_LEN + signature.len() as u64;
    for (extra_bytes_max, is_within) in [(len - 1, false), (len, true)] {
        let fixture = Fixture::with_rules(Rules {
            extra_bytes_max,
            ..Rules::default()
        });
        let (token, mut body) = (&fixture.tokens[0], file.nar.as_slice());
        let put = nar::put(&fixture.cache, token, &file.name, &mut body, &mut Unlimited);
        put.unwrap();
        fixture.put_narinfo(0, &known, &unsigned).unwrap();
        let again = fixture.put_narinfo(0, &known, &signed);
        assert_eq!(again.is_ok(), is_within, "{again:?}");
        // What is there already needs no space.
        fixture.put_narinfo(0, &known, &unsigned).unwrap();
    }
}

/// A cache without a quota has a limit for what it stores besides NARs, so that paths that share
/// one file cannot grow the database without end.
#[test]
fn narinfos_and_logs_of_a_cache_without_a_quota_are_limited() {
    let limited = |extra_bytes_max| {
        Fixture::with_rules(Rules {
            extra_bytes_max,
            ..Rules::default()
        })
    };
    let is_refused = |outcome: Result<_, PutError>| {
        matches!(outcome, Err(PutError::Narinfo(refusal))
            if matches!(*refusal, Refusal::TooManyExtras { .. }))
    };
    let shared = upload("shared");
    let (one, two) = (path(1, "one"), path(2, "two"));
    // The second path refers to the first.
    let len = 2 * OWN_LEN + one.base_name().len() as u64;
    let log = path(3, "log.drv");
    for (max, is_within) in [(len - 1, false), (len, true)] {
        let fixture = limited(max);
        let put = |token: usize| {
            let mut body = shared.nar.as_slice();
            let token = &fixture.tokens[token];
            nar::put(
                &fixture.cache,
                token,
                &shared.name,
                &mut body,
                &mut Unlimited,
            )
        };
        put(0).unwrap();
        fixture
            .put_narinfo(0, &one, &text(&one, &shared, &[]))
            .unwrap();
        let second = fixture.put_narinfo(0, &two, &text(&two, &shared, &[&one]));
        assert_eq!(is_refused(second.map(drop)), !is_within);
        let mut empty: &[u8] = b"";
        let logged = logs::put(&fixture.cache, &fixture.tokens[0], &log, &mut empty, 1);
        assert_eq!(is_refused(logged), is_within);
    }
}
