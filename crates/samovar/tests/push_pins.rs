//! A client with the right `pin` pins the paths that it has pushed, and no others than its token
//! permits.

mod support;
mod support_protocol;
mod support_push;
mod support_uploads;

use samovar_storage::metadata::PIN_COUNT_MAX;
use serde_json::json;
use support::samovar;
use support_push::proxy::{Action, Proxy};
use support_push::{Pusher, count, exits_with};
use support_uploads::{MadePath, Running, Site, assert_refused};
use testkit::http1::Response;
use testkit::nix::{OwnStore, local};
use testkit::process::output;

/// Returns the rows of `samovar pin list`: name, generation, whether it expires, and the base name
/// of the path.
fn pins(site: &Site) -> Vec<(String, u32, bool, String)> {
    let mut command = samovar();
    let list = output(
        command
            .args(["pin", "list", "--storage"])
            .arg(site.storage()),
    );
    let rows = list.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let [_cache, name, generation, _created, expires, path] = cells[..] else {
            unreachable!("{line}");
        };
        let generation = generation.parse().expect("is a number");
        (
            name.to_owned(),
            generation,
            expires != "never",
            path.replace("/nix/store/", ""),
        )
    });
    rows.collect()
}

/// Sends the request that pins a path.
fn put_pin(server: &Running, token: &str, name: &str, base_name: &str) -> Response {
    server.put(token, &format!("/upload/pin/{name}"), base_name)
}

#[test]
fn a_pushed_path_is_pinned_and_not_collected() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--rights", "read,push,pin"]);
    let store = OwnStore::new();
    let paths: Vec<String> = (1..=4)
        .map(|number| store.add_file(&format!("app-{number}"), &[number]))
        .collect();
    let base_name = |index: usize| paths[index][11..].to_owned();
    let pusher = Pusher::new(&local(store.root()), &token);
    let push = |index: usize, more: &[&str]| {
        let arguments = [&[&*paths[index], "--pin", "app/main"], more].concat();
        pusher.report(&server.url(), &arguments)
    };
    let report = push(0, &[]);
    let expected = json!({
        "name": "app/main", "path": paths[0], "generation": 1, "reason": null,
    });
    assert_eq!((count(&report, "pushed"), &report["pin"]), (1, &expected));
    let row =
        |generation, expires, index| ("app/main".to_owned(), generation, expires, base_name(index));
    assert_eq!(pins(&site), [row(1, false, 0)]);
    // A path that the cache has already is pinned, too. The same path is no new generation.
    let report = push(0, &["--pin-expires", "90d"]);
    assert_eq!(
        (count(&report, "present"), &report["pin"]["generation"]),
        (1, &json!(1))
    );
    assert_eq!(pins(&site), [row(1, true, 0)]);
    push(1, &[]);
    push(2, &["--keep", "2"]);
    assert_eq!(pins(&site), [row(3, false, 2), row(2, false, 1)]);
    push(2, &["--keep", "1"]);
    assert_eq!(pins(&site), [row(3, false, 2)]);
    pusher.report(&server.url(), &[&paths[3]]);
    site.sql(
        "update path set used_at = used_at - 3456000, registered_at = registered_at - 3456000",
    );
    let mut gc = samovar();
    gc.args(["gc", "--dry-run", "--uploads-retention", "30d", "--storage"]);
    let plan = output(gc.arg(site.storage()));
    for index in 0..4 {
        assert_eq!(plan.contains(&base_name(index)), index != 2, "{plan}");
    }
    // The text names the pin before the summary.
    let text = output(&mut pusher.push(&server.url(), &[&paths[0], "--pin", "old"]));
    let pinned = format!("pinned {} as old, generation 1\npushed 0 paths,", paths[0]);
    assert!(text.starts_with(&pinned), "{text}");
}

#[test]
fn paths_are_pushed_even_if_they_cannot_be_pinned() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let mut number = 0;
    // Pushes a new path with `--pin` over the proxy, which must fail with this text.
    let mut fails = |proxy: &Proxy, token: &str, part: &str| {
        number += 1;
        let path = store.add_file(&format!("app-{number}"), &[number]);
        let pusher = Pusher::new(&local(store.root()), token);
        let text = exits_with(&mut pusher.push(&proxy.url(), &[&path, "--pin", "main"]), 1);
        let not_pinned = format!("not pinned {path} as main: ");
        let line = text.lines().find(|line| line.starts_with(&not_pinned));
        assert!(line.is_some_and(|line| line.contains(part)), "{text}");
        assert!(text.contains("pushed 1 path,"), "{text}");
        let narinfo = format!("/{}.narinfo", testkit::nix::hash_part(&path));
        assert_eq!(server.get(&narinfo).status, 200);
    };
    let pusher = site.token(&["--rights", "read,push"]);
    let both = site.token(&["--rights", "read,push,pin"]);
    let server_as_it_is = Proxy::start(server.address, |_| Action::Forward);
    fails(
        &server_as_it_is,
        &pusher,
        "may not pin: it has the right read,push",
    );
    // A server without the endpoint, and a server that is not Samovar.
    for refused in ["/upload/pin/", "/upload/"] {
        let old = Proxy::start(server.address, move |line| match line.contains(refused) {
            true => Action::Refuse(404),
            false => Action::Forward,
        });
        fails(&old, &both, "the cache does not let clients pin paths");
    }
    assert_eq!(pins(&site), []);
}

#[test]
fn several_paths_for_one_pin_are_a_usage_error() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let paths = [store.add_file("a", b"a"), store.add_file("b", b"b")];
    let token = site.token(&["--rights", "push,pin"]);
    let pusher = Pusher::new(&local(store.root()), &token);
    let arguments = [&paths[0], &paths[1], "--pin", "main"];
    let text = exits_with(&mut pusher.push(&server.url(), &arguments), 2);
    assert!(
        text.contains("--pin needs exactly one path, not 2"),
        "{text}"
    );
    assert_eq!((pins(&site), site.files().len()), (Vec::new(), 0));
}

#[test]
fn a_pin_needs_a_valid_token_with_the_right_and_matching_names() {
    let site = Site::new();
    let server = site.start();
    let (app, main) = (MadePath::new("mr-app"), MadePath::new("main-app"));
    let all = site.token(&["--rights", "push,pin"]);
    server.publish(&all, &app);
    server.publish(&all, &main);
    let (app, main) = (&app.store_path[11..], &main.store_path[11..]);
    let revoked = site.token(&["--rights", "pin", "--name", "left"]);
    site.revoke("left");
    for token in ["", "smv1_unknown", site.expired_token(), &revoked] {
        assert_refused(&put_pin(&server, token, "mr-1", app), 401, &["token"]);
    }
    let pusher = site.token(&["--rights", "read,push"]);
    let refused = put_pin(&server, &pusher, "mr-1", app);
    assert_refused(&refused, 403, &["may not pin", "read,push"]);

    let limited = site.token(&["--rights", "pin", "--names", "mr-*"]);
    for (name, path) in [("main", app), ("mr-1", main), ("main", main)] {
        let refused = put_pin(&server, &limited, name, path);
        assert_refused(
            &refused,
            403,
            &["\"mr-*\"", &format!("{name:?}"), &path[33..]],
        );
    }
    assert_eq!(pins(&site), []);
    let response = put_pin(&server, &limited, "mr-1", app);
    let expected = format!("pinned 1 {app}\nend 1\n");
    assert_eq!((response.status, response.text()), (200, expected));
    // The right to pin is not the right to push.
    let other = MadePath::new("mr-other");
    assert_eq!(
        server
            .put(&limited, &other.file_target(), &other.file)
            .status,
        403
    );
}

#[test]
fn requests_that_break_a_rule_pin_nothing() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--rights", "push,pin"]);
    let (path, absent) = (MadePath::new("app"), MadePath::new("absent"));
    server.publish(&token, &path);
    let (base_name, absent) = (&path.store_path[11..], &absent.store_path[11..]);
    let renamed = format!("{base_name}x");
    let (longest, long) = ("a".repeat(255), "a".repeat(256));
    let too_long = "x".repeat(2000);
    for (name, body, status, part) in [
        ("", base_name, 400, "1 to 255 bytes"),
        ("a%0Ab", base_name, 400, "1 to 255 bytes"),
        (&*long, base_name, 400, "1 to 255 bytes"),
        ("main?keep=0", base_name, 400, "keep is \"0\""),
        ("main?expires=90d", base_name, 400, "expires is \"90d\""),
        ("main?keeep=1", base_name, 400, "\"keeep\""),
        ("main", "", 400, "base name"),
        ("main", &path.store_path, 400, "base name"),
        ("main", &too_long, 400, "base name"),
        ("main", absent, 409, "has not been uploaded"),
        ("main", &renamed, 409, "has not been uploaded"),
    ] {
        assert_refused(&put_pin(&server, &token, name, body), status, &[part]);
    }
    assert_eq!(
        server.request("GET", "/upload/pin/main", &token).status,
        404
    );
    assert_eq!(server.put(&token, "/pin/main", base_name).status, 404);
    assert_eq!(pins(&site), []);
    assert_eq!(put_pin(&server, &token, &longest, base_name).status, 200);
}

#[test]
fn clients_cannot_exceed_the_limit_of_pins() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--rights", "push,pin"]);
    let (first, second) = (MadePath::new("first"), MadePath::new("second"));
    server.publish(&token, &first);
    server.publish(&token, &second);
    let (first, second) = (&first.store_path[11..], &second.store_path[11..]);
    assert_eq!(put_pin(&server, &token, "main", first).status, 200);
    let others = PIN_COUNT_MAX - 2;
    site.sql(&format!(
        "with recursive numbers(n) as \
                 (select 1 union all select n + 1 from numbers where n < {others}) \
             insert into pin (cache_id, name, generation, path_id, created_at) \
             select cache_id, 'other', n, path_id, 0 from numbers, pin"
    ));
    assert_eq!(put_pin(&server, &token, "last", first).status, 200);
    let refused = put_pin(&server, &token, "more", first);
    assert_refused(&refused, 413, &["10000 pins"]);
    assert_refused(
        &put_pin(&server, &token, "main", second),
        413,
        &["10000 pins"],
    );
    // A repetition, and a generation that replaces another one, stay within the limit.
    assert_eq!(put_pin(&server, &token, "main", first).status, 200);
    assert_eq!(put_pin(&server, &token, "main?keep=1", second).status, 200);
    // The limit does not apply to the operator.
    let mut add = samovar();
    add.args(["pin", "add", "operator", first, "--storage"]);
    output(add.arg(site.storage()));
}
