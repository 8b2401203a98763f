//! `samovar push` sends closures by the push protocol. They can be copied back byte by byte, only
//! missing files are sent, and many paths need few requests.

mod support;
mod support_push;
mod support_uploads;

use std::fs;

use serde_json::json;
use support::{sample, sample_root, sample_store};
use support_push::proxy::{Action, Proxy};
use support_push::{
    Pusher, assert_copies_back, closure, count, exits_with, noise, overwrite, words,
};
use support_uploads::Site;
use testkit::nix::{OwnStore, local};
use testkit::process::output;
use testkit::sqlite::Shell;

#[test]
fn a_closure_is_pushed_once_and_copied_back() {
    let site = Site::new();
    let server = site.start();
    let proxy = Proxy::start(server.address, |_| Action::Forward);
    // These paths refer to each other and to themselves, and have content addresses and all kinds
    // of files.
    let names = ["self_reference", "fixed", "text", "ca", "kinds", "odd"];
    let names = names.iter().chain(&["signed", "empty", "built"]);
    let paths: Vec<String> = names.map(|name| sample(name)).collect();
    let all = closure(&sample_root(), &paths).len();
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));

    let listed = pusher.report(&proxy.url(), &[&["--dry-run"], &words(&paths)[..]].concat());
    assert_eq!(count(&listed, "pushed"), all);
    assert!(site.files().is_empty());

    let report = pusher.report(&proxy.url(), &words(&paths));
    assert_eq!(report["pushProtocol"], true);
    assert_eq!(
        (count(&report, "pushed"), count(&report, "present")),
        (all, 0)
    );
    assert_copies_back(&server.url(), &site.public_key, &sample_root(), &paths);
    // The requests are nix-cache-info, open, one pack, publish, and the end of the push.
    assert_eq!(report["requests"], 5);
    assert!(proxy.exchanges(".narinfo").is_empty());

    // The second push sends nothing.
    let files = site.files();
    let report = pusher.report(&proxy.url(), &words(&paths));
    assert_eq!(
        (count(&report, "pushed"), count(&report, "present")),
        (0, all)
    );
    assert_eq!(
        (&report["sentSize"], &report["requests"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(proxy.exchanges("/pack").len(), 1);
    assert_eq!(site.files(), files);
}

#[test]
fn large_and_equal_nars_are_pushed() {
    let site = Site::new();
    let server = site.start();
    let proxy = Proxy::start(server.address, |_| Action::Forward);
    let store = OwnStore::new();
    let large = [noise(1, 33 << 20), vec![b'a'; 6 << 20]].concat();
    // `large` and `other` have the same NAR, and so have `small` and `same`.
    let paths = [
        store.add_file("large", &large),
        store.add_file("other", &large),
        store.add_file("small", b"text"),
        store.add_file("same", b"text"),
        store.add_file("medium", &noise(2, 2 << 20)),
    ];
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let report = pusher.report(&proxy.url(), &words(&paths));
    assert_eq!(count(&report, "pushed"), paths.len());
    // The PUT requests are two parts of the large NAR, and one of the medium one, and a pack.
    assert_eq!(proxy.exchanges("PUT").len(), 4);
    assert_eq!(proxy.exchanges("/join/").len(), 2);
    assert_copies_back(&server.url(), &site.public_key, store.root(), &paths);
    // Another path with a NAR that the cache has needs only its narinfo.
    let again = [store.add_file("again", &large)];
    let report = pusher.report(&proxy.url(), &words(&again));
    assert_eq!(
        (count(&report, "pushed"), &report["sentSize"]),
        (1, &json!(0))
    );
    assert_copies_back(&server.url(), &site.public_key, store.root(), &again);
}

#[test]
fn paths_that_cannot_be_pushed_are_listed_and_the_others_are_pushed() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let good = store.add_file("good", b"good");
    let bad = store.add_file("bad", b"bad");
    let long = store.add_file("long", &noise(3, 5 << 20));
    overwrite(&store.real(&bad), b"BAD");
    overwrite(&store.real(&long), &noise(4, 5 << 20));
    let token = site.token(&[]);
    let pusher = Pusher::new(&local(store.root()), &token);
    let text = exits_with(&mut pusher.push(&server.url(), &[&good, &bad, &long]), 1);
    for bad in [&bad, &long] {
        let line = format!("failed {bad}: unreadable: its files differ");
        assert!(text.contains(&line), "{text}");
        assert_eq!(
            server.get(&format!("/{}.narinfo", &bad[11..43])).status,
            404
        );
    }
    assert!(text.contains("\npushed 1 path, "), "{text}");
    assert_eq!(
        server.get(&format!("/{}.narinfo", &good[11..43])).status,
        200
    );

    // Without its closure, a path is refused if the cache lacks one of its references.
    let pusher = Pusher::new(&sample_store(), &token);
    let path = sample("text");
    let text = exits_with(&mut pusher.push(&server.url(), &["--no-closure", &path]), 1);
    let line = format!("failed {path}: its reference ");
    assert!(
        text.contains(&line) && text.contains(" is not in the cache"),
        "{text}"
    );
}

#[test]
fn a_refused_narinfo_fails_its_path_and_the_referrer_only() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let paths: Vec<String> = (0..6)
        .map(|number| store.add_file(&format!("file-{number}"), &[b'0' + number]))
        .collect();
    let [_, bad, .., referrer] = &paths[..] else {
        unreachable!("there are six paths");
    };
    let row = |path: &str| format!("(select id from ValidPaths where path = '{path}')");
    drop(Shell::open(
        &store.database(),
        &format!(
            "update ValidPaths set ca = (select ca from ValidPaths where path = '{referrer}') \
             where path = '{bad}'; \
             update ValidPaths set ca = null where path = '{referrer}'; \
             insert into Refs values ({}, {});",
            row(referrer),
            row(bad)
        ),
    ));
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let text = exits_with(&mut pusher.push(&server.url(), &words(&paths)), 1);
    let line = format!("failed {bad}: the cache refused it: 422");
    assert!(text.contains(&line), "{text}");
    let name = &bad["/nix/store/".len()..];
    let line = format!("failed {referrer}: its reference {name} was not pushed");
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("\npushed 4 paths, "), "{text}");
}

/// 10,000 paths take as many requests, plus those for three more packs and two more batches.
#[test]
fn many_small_paths_take_few_requests() {
    const COUNT: usize = 2000;
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<String> = (0..COUNT)
        .map(|number| {
            let file = dir.path().join(format!("file-{number}"));
            fs::write(&file, number.to_string()).unwrap();
            file.to_str().unwrap().to_owned()
        })
        .collect();
    let paths = store.run("nix-store", &[&["--add"], &words(&files)[..]].concat());
    let paths: Vec<&str> = paths.lines().collect();
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let report = pusher.report(&server.url(), &paths);
    assert_eq!(count(&report, "pushed"), COUNT);
    assert_eq!(report["requests"], 5);
    let report = pusher.report(&server.url(), &paths);
    assert_eq!(
        (count(&report, "present"), &report["requests"]),
        (COUNT, &json!(3))
    );
    let last = paths.last().unwrap();
    assert_eq!(
        server.get(&format!("/{}.narinfo", &last[11..43])).status,
        200
    );
    output(&mut pusher.push(&server.url(), &paths[..10]));
}
