//! What changes between two readings of the configuration.

use super::settings;

/// The options that a reload changes, with those of the server apart.
#[test]
fn changed_options_are_named() {
    let before = settings("backlog = 1\npriority = 1\n[caches.a]\npages = false\n").unwrap();
    let text = "backlog = 2\npriority = 1\n[caches.a]\npages = true\n[caches.b]\n";
    let after = settings(text).unwrap();
    assert_eq!(after.changed_at_start(&before), ["backlog"]);
    let expected = ["caches.a.pages", "caches.b (new)"];
    assert_eq!(after.changed_at_reload(&before), expected);
    let expected = ["caches.a.pages", "caches.b (no longer served)"];
    assert_eq!(before.changed_at_reload(&after), expected);
    // The options of a cache that came or went are not named.
    let with = settings(&format!("{text}priority = 3\n")).unwrap();
    assert_eq!(
        with.changed_at_reload(&before),
        ["caches.a.pages", "caches.b (new)"]
    );
    assert_eq!(after.changed_at_reload(&after), [""; 0]);
}

#[test]
fn changed_upstreams_are_named() {
    let before = "upstream-memory = \"1 MiB\"\n[upstreams.a]\nurl = \"https://a\"\npriority = 1\n";
    let before = settings(before).unwrap();
    let after = settings(
        "upstream = \"https://cache.nixos.org\"\nupstream-memory = \"2 MiB\"\n\
         upstream-budget = 1\nnegative-ttl = 0\n[upstreams.a]\nurl = \"https://a\"\n\
         priority = 2\n[upstreams.b]\nurl = \"https://b\"\n",
    );
    let after = after.unwrap();
    assert_eq!(after.changed_at_start(&before), [""; 0]);
    let options = [
        "negative-ttl",
        "upstream",
        "upstream-budget",
        "upstream-memory",
        "upstreams.a.priority",
    ];
    let expected = [&options[..], &["upstreams.b (new)"]].concat();
    assert_eq!(after.changed_at_reload(&before), expected);
    let expected = [&options[..], &["upstreams.b (no longer asked)"]].concat();
    assert_eq!(before.changed_at_reload(&after), expected);
}
