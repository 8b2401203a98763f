//! The work of a search does not tell whether a path that a policy hides matches: the thread that
//! answers makes the same system calls for the start of a hidden hash as for that of no hash.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use support_uploads::{MadePath, Site, Traced, can_trace, send};
use testkit::eventually;
use testkit::nix::{OwnStore, hash_part, local};

/// System calls by which a look-up reads a database, or opens a transaction in one.
const LOOKUPS: [&str; 4] = ["pread64", "fcntl", "statx", "openat"];

/// System calls by which an answer is sent.
const ANSWERS: [&str; 4] = ["sendto", "sendmsg", "write", "writev"];

/// The number of system calls by their names.
type Counts = BTreeMap<&'static str, usize>;

/// A server under strace.
struct Counted {
    _server: Traced,
    address: SocketAddr,
    trace: PathBuf,
}

impl Counted {
    fn start(site: &Site) -> Self {
        let trace = site.dir().join("trace");
        let calls = [&LOOKUPS[..], &ANSWERS[..]].concat().join(",");
        let arguments = [
            format!("--output={}", trace.display()),
            format!("--trace={calls}"),
        ];
        let mut server = Traced::start(site, &arguments, &[]);
        let address = server.address().unwrap();
        Self {
            _server: server,
            address,
            trace,
        }
    }

    /// Returns the look-ups of a search for a text that finds nothing, as soon as three searches
    /// make the same ones. The first ones open connections to the databases.
    #[track_caller]
    fn lookups(&self, asked: &str) -> Counts {
        let mut last = Vec::new();
        eventually("searches make the same look-ups", || {
            last.extend(self.search(asked));
            last.last_chunk()
                .is_some_and(|[one, two, three]| one == two && two == three)
        });
        last.pop().unwrap()
    }

    /// Searches for a text that finds nothing. Returns the look-ups of the thread that answers, or
    /// `None` while the roots of the policy are unknown.
    #[track_caller]
    fn search(&self, asked: &str) -> Option<Counts> {
        let before = fs::read(&self.trace).unwrap().len();
        let target = format!("/search?q={asked}");
        let found = send(self.address, "GET", &target, "", b"");
        if found.status == 503 {
            return None;
        }
        let text = found.text();
        assert_eq!(found.status, 404, "{text}");
        assert!(text.contains("No path found"), "{text}");
        let mut counts = None;
        eventually("the answer is traced", || {
            let text = fs::read_to_string(&self.trace).unwrap();
            counts = count(&text[before..]);
            counts.is_some()
        });
        counts
    }
}

/// Counts the look-ups of the thread that answers. `None`: the answer is not in the trace yet.
fn count(trace: &str) -> Option<Counts> {
    let lines: Vec<&str> = trace.lines().collect();
    let is_answer = |line: &&str| line.contains("\"HTTP/1.1 404 ");
    let answer = lines.iter().position(is_answer)?;
    let thread = lines[answer].split_whitespace().next()?;
    let mut counts = BTreeMap::new();
    for line in &lines[..answer] {
        let Some(call) = line.strip_prefix(thread).map(str::trim_start) else {
            continue;
        };
        if let Some(name) = LOOKUPS.into_iter().find(|name| call.starts_with(name)) {
            *counts.entry(name).or_default() += 1;
        }
    }
    Some(counts)
}

#[test]
fn a_search_makes_no_more_look_ups_for_hidden_paths() {
    if !can_trace() {
        return;
    }
    let uploaded = MadePath::new("secret-uploaded");
    let others = [MadePath::new("other-1"), MadePath::new("other-2")];
    for has_store in [true, false] {
        let store = OwnStore::new();
        let stored = has_store.then(|| store.add_file("secret-stored", b"1"));
        if has_store {
            store.add_file("other-3", b"3");
        }
        let site = Site::new();
        let roots = [("a", stored.as_ref()), ("b", Some(&uploaded.store_path))];
        let roots = roots.map(|(name, target)| {
            let root = site.dir().join(name);
            symlink(target.unwrap_or(&uploaded.store_path), &root).unwrap();
            root
        });
        site.configure(&local(store.root()), "");
        let token = site.token(&[]);
        let server = site.start();
        for path in [&uploaded, &others[0], &others[1]] {
            server.publish(&token, path);
        }
        drop(server);
        let hashes = [stored.as_deref(), Some(&uploaded.store_path)];
        let hidden: Vec<&str> = hashes
            .into_iter()
            .flatten()
            .map(|path| &hash_part(path)[..8])
            .collect();
        for rule in [
            "names = [\"secret-*\"]".to_owned(),
            format!("roots = {roots:?}"),
            "max-age = \"1d\"".to_owned(),
            "max-age = \"1d\", names = [\"secret-*\"]".to_owned(),
        ] {
            site.configure(
                &local(store.root()),
                &format!("pages = true\n[policy]\ndeny = [{{ {rule} }}]\n"),
            );
            let counted = Counted::start(&site);
            let expected = counted.lookups("zzzzzzzz");
            for asked in &hidden {
                assert_eq!(counted.lookups(asked), expected, "{rule}, {asked}");
            }
        }
    }
}
