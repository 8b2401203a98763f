//! At the end of its patience, an upload that waits for the database gets a response with which its
//! client can continue.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use samovar_nix::StoreDir;
use samovar_storage::metadata::{NewToken, tokens};
use samovar_storage::token::{Rights, TokenHash};
use samovar_storage::{DATABASE, Storage, open_database};

use super::{Answer, TestServer};
use crate::{CacheConfig, SiteConfig};

const TOKEN: &str = "smv1_test";

/// The NARs of an empty file and of an empty executable file, with the hashes of the NARs.
const NARS: [(&str, &str); 2] = [
    ("", "0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p"),
    (
        "executable",
        "146m62fh059g7arnrjh6a7yh4q879r36fsm4a5c4dbd6ja2hpq1l",
    ),
];

/// Returns the text of a NAR of an empty file. `mark`: the word `executable`, or none.
fn nar(mark: &str) -> String {
    let mut words = vec!["nix-archive-1", "(", "type", "regular"];
    if !mark.is_empty() {
        words.extend([mark, ""]);
    }
    words.extend(["contents", "", ")"]);
    let field = |word: &str| {
        let len = char::from(u8::try_from(word.len()).unwrap());
        let padding = "\0".repeat(word.len().next_multiple_of(8) - word.len());
        format!("{len}\0\0\0\0\0\0\0{word}{padding}")
    };
    words.into_iter().map(field).collect()
}

/// Takes the write lock of a storage's database in another process, which holds it until its input
/// ends.
fn lock(root: &Path) -> Child {
    let mut sqlite = Command::new("sqlite3");
    let sqlite = sqlite.arg(root.join(DATABASE)).stdin(Stdio::piped());
    let mut sqlite = sqlite.stdout(Stdio::piped()).spawn().unwrap();
    let statements = sqlite.stdin.as_mut().unwrap();
    statements
        .write_all(b".timeout 10000\nbegin immediate; select 'locked';\n")
        .unwrap();
    let mut locked = String::new();
    let mut rows = BufReader::new(sqlite.stdout.take().unwrap());
    rows.read_line(&mut locked).unwrap();
    assert_eq!(locked, "locked\n");
    sqlite
}

fn put(server: &TestServer, agent: &str, method: &str, target: &str, body: &str) -> Answer {
    let fields = format!(
        "Authorization: Bearer {TOKEN}\r\nUser-Agent: {agent}\r\nContent-Length: {}\r\n",
        body.len()
    );
    let answer = server.request_with_body(method, target, &fields, body);
    answer.unwrap()
}

#[test]
fn an_upload_ends_with_the_patience_for_a_locked_database() {
    let dir = tempfile::tempdir().unwrap();
    let token = NewToken {
        name: "test".to_owned(),
        cache: None,
        names: None,
        rights: Rights {
            read: true,
            push: true,
            pin: false,
        },
        expires_at: None,
    };
    let hash = TokenHash::of(TOKEN.as_bytes()).unwrap();
    let storage = Storage::open(dir.path(), &StoreDir::default()).unwrap();
    open_database(dir.path())
        .and_then(|database| tokens::add(&database, &hash, &token))
        .unwrap();
    let server = TestServer::with_site(SiteConfig {
        caches: vec![CacheConfig {
            uploads: Some(storage.cache("default", true).unwrap()),
            ..CacheConfig::default()
        }],
        storage: Some(Arc::clone(&storage)),
        ..SiteConfig::default()
    });
    let file = |(_, hash): (&str, &str)| format!("/nar/{hash}.nar");
    let [stored, new] = NARS;
    let answer = put(&server, "curl", "PUT", &file(stored), &nar(stored.0));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let hash_part = "0".repeat(32);
    let narinfo = format!(
        "StorePath: /nix/store/{hash_part}-a\nURL: {}\nCompression: none\n\
         NarHash: sha256:{}\nNarSize: {}\nReferences: \n",
        &file(stored)[1..],
        stored.1,
        nar(stored.0).len()
    );
    let mut sqlite = lock(dir.path());
    storage.set_patience(Duration::from_millis(20));
    let requests = [
        ("PUT", file(new), nar(new.0)),
        ("PUT", format!("/{hash_part}.narinfo"), narinfo.clone()),
        ("POST", "/upload/push/1/open".to_owned(), String::new()),
    ];
    for (method, target, body) in &requests {
        for (agent, status) in [
            ("curl/7.88.1 Nix/2.8.0", 422),
            ("curl/8.14.1 Nix/2.32.4", 422),
            ("curl/8.14.1 Nix/2.33.0", 503),
            ("samovar/0.1.0", 503),
        ] {
            let answer = put(&server, agent, method, target, body);
            assert_eq!(answer.status, status, "{agent} {target}: {}", answer.text());
            let retries = answer.head.contains("Retry-After: ");
            assert_eq!(retries, status == 503, "{agent} {target}: {}", answer.head);
            assert!(answer.text().contains("the storage cannot be written"));
        }
    }
    // Nothing of these requests was kept, and they succeed after the lock is released.
    for target in [&requests[0].1, &requests[1].1] {
        let head = put(&server, "curl", "HEAD", target, "");
        assert_eq!(head.status, 404, "{target}");
    }
    drop(sqlite.stdin.take());
    sqlite.wait().unwrap();
    for (method, target, body) in &requests {
        let answer = loop {
            // On a slow disk, a commit may take longer than the short patience.
            let answer = put(&server, "samovar/0.1.0", method, target, body);
            if answer.status != 503 {
                break answer;
            }
        };
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    }
}
