//! The web interface shows no more than narinfos do, escapes all text from a store, and exists only
//! with `--pages`.

mod support;
mod support_pages;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use support::{
    OwnStore, Response, ServerProcess, eventually, hash_part, key_pair, local, nix_serve, sample,
};
use support_pages::{HTML, is_page, page, references, resolve, serve};

/// File names that have a special meaning in HTML, URLs, JSON or a shell.
const NAMES: [&[u8]; 9] = [
    b"<script>alert(1)<script>",
    b"\"><img src=x onerror=alert(1)>",
    b"'&amp;{{7*7}}",
    b"new\nline",
    b"not\xffutf8\xfe",
    "exe.\u{202e}txt".as_bytes(),
    b"javascript:alert(1)",
    b"a..b",
    b"100%25?q#f",
];

/// Without `--pages` there is no web interface.
#[test]
fn without_the_option_no_page_exists() {
    let store = OwnStore::new();
    let path = store.add_file("plain", b"plain");
    let server = ServerProcess::of_store(store.root());
    let hash = hash_part(&path);
    for url in [
        "/",
        "/healthz",
        "/readyz",
        "/version",
        "/search?q=x",
        &format!("/path/{hash}"),
        &format!("/serve/{hash}"),
    ] {
        let answer = server.request("GET", url, &[HTML]);
        assert_eq!(
            (answer.status, &*answer.text()),
            (404, "File not found.\n"),
            "{url}"
        );
        assert_eq!(answer.header("content-type"), Some("text/plain"));
    }
}

/// The web interface does not change responses to requests that Nix clients send.
#[test]
fn requests_of_nix_are_answered_as_without_pages() {
    let store = OwnStore::new();
    let path = store.add_file("plain", b"plain");
    let plain = ServerProcess::of_store(store.root());
    let paged = serve(&store);
    let hash = hash_part(&path);
    let head = |answer: &Response| {
        let lines = answer
            .head
            .lines()
            .filter(|line| !line.starts_with("Date: "));
        lines.collect::<Vec<_>>().join("\n")
    };
    for url in [
        "/nix-cache-info",
        &format!("/{hash}.narinfo"),
        &format!("/{hash}.ls"),
        &plain.nar_url(&path),
        "/00000000000000000000000000000000.narinfo",
        "/x.narinfo",
        "/nothing",
        "/log/x",
    ] {
        for accept in ["Accept: */*", "X-None: 1"] {
            let (without, with) = (
                plain.request("GET", url, &[accept]),
                paged.request("GET", url, &[accept]),
            );
            assert_eq!(head(&without), head(&with), "{url}");
            assert_eq!(without.body, with.body, "{url}");
        }
    }
    let browser = paged.request("GET", "/nothing", &[HTML]);
    assert_eq!(browser.status, 404);
    assert!(is_page(&browser), "{browser:?}");
    assert_eq!(paged.request("POST", "/", &[]).status, 405);
}

#[test]
fn search_leads_to_the_page_of_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "cache.example-1");
    let mut command = nix_serve();
    command.args(["--pages", "--store", &local(&support::sample_root())]);
    command.env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    let landing = page(&server, "/");
    assert!(landing.contains(&public), "{landing}");
    let style = references(&landing)
        .into_iter()
        .find(|url| url.ends_with(".css"))
        .unwrap();
    let style = server.get(&resolve("/", &style));
    assert_eq!(style.status, 200);
    let forever = Some("max-age=31536000, immutable");
    assert_eq!(style.header("cache-control"), forever);

    let built = sample("built");
    let hash = hash_part(&built);
    for asked in [&*built, hash, &format!("http%3A%2F%2Fx%2F{hash}.narinfo")] {
        let found = server.get(&format!("/search?q={asked}"));
        assert_eq!(found.status, 302, "{found:?}");
        let location = resolve("/search", found.header("location").unwrap());
        assert_eq!(location, format!("/path/{hash}"));
    }
    for asked in [
        "",
        "?q=",
        "?q=%3Cscript%3E",
        "?q=00000000000000000000000000000000",
    ] {
        let found = server.get(&format!("/search{asked}"));
        assert_eq!(found.status, 404);
        assert!(
            is_page(&found) && !found.text().contains("<script>"),
            "{found:?}"
        );
    }
    let shown = page(&server, &format!("/path/{hash}"));
    for part in [
        &*built,
        "cache.example-1",
        "Build log",
        ".narinfo",
        "Closure",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Every link on the page leads to an existing page.
    for reference in references(&shown) {
        let url = resolve(
            &format!("/path/{hash}"),
            reference.trim_start_matches("#main"),
        );
        let answer = server.get(&url);
        assert!(
            matches!(answer.status, 200 | 302),
            "{reference}: {url}: {answer:?}"
        );
    }
}

#[test]
fn names_of_any_bytes_are_escaped() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("hostile");
    std::fs::create_dir(&root).unwrap();
    for (number, name) in NAMES.iter().enumerate() {
        std::fs::write(root.join(OsStr::from_bytes(name)), number.to_string()).unwrap();
        let dir = root.join(OsStr::from_bytes(&[b"dir ", *name].concat()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(OsStr::from_bytes(name)), format!("in {number}")).unwrap();
        let link = OsStr::from_bytes(&[b"link ", *name].concat()).to_owned();
        symlink(OsStr::from_bytes(name), root.join(link)).unwrap();
    }
    let path = store.add(&root);
    let server = serve(&store);
    let url = format!("/serve/{}/", hash_part(&path));
    let listed = page(&server, &url);
    for bad in [
        "<script>",
        "<img",
        "onerror=alert(1)>\"",
        "href=\"javascript",
        "\u{202e}",
    ] {
        assert!(!listed.contains(bad), "{bad}: {listed}");
    }
    // Every file can be reached through its link, whatever its name.
    let mut found: Vec<String> = Vec::new();
    let mut asked = vec![url];
    while let Some(url) = asked.pop() {
        let answer = server.get(&url);
        match answer.header("content-type") {
            _ if answer.status == 302 => {
                asked.push(resolve(&url, answer.header("location").unwrap()));
            }
            Some("text/html; charset=utf-8") => {
                let text = answer.text();
                // A list, or the page of a file with a link to the file itself.
                let links = match text.split_once("<tbody>") {
                    Some((_, table)) => references(table),
                    None => references(text.split_once("\"log-tools\"").unwrap().1)[..1].to_vec(),
                };
                asked.extend(links.iter().map(|reference| resolve(&url, reference)));
            }
            _ => found.push(answer.text()),
        }
    }
    found.sort();
    let mut expected: Vec<String> = (0..NAMES.len())
        .flat_map(|number| {
            [
                number.to_string(),
                number.to_string(),
                format!("in {number}"),
            ]
        })
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn links_lead_only_to_served_paths() {
    let store = OwnStore::new();
    let other = store.add_file("other", b"the other path");
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("links");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(root.join("file"), "the file").unwrap();
    let absent = "/nix/store/00000000000000000000000000000006-absent";
    let valid_name = format!("{}-another-name", &other[..43]);
    let outside = [
        "/etc/passwd",
        "/nix/var/nix/db/db.sqlite",
        "..",
        "../..",
        absent,
        &valid_name,
    ];
    for (number, target) in outside.iter().enumerate() {
        symlink(target, root.join(format!("out{number}"))).unwrap();
    }
    symlink("../../../../../../../../etc/passwd", root.join("sub/out")).unwrap();
    for (name, target) in [
        ("in", "file"),
        ("up", "sub"),
        ("other", &*other),
        ("self", "self"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    symlink("../file", root.join("sub/in")).unwrap();
    let path = store.add(&root);
    let server = serve(&store);
    let hash = hash_part(&path);
    let listed = page(&server, &format!("/serve/{hash}/"));
    for number in 0..outside.len() {
        assert!(!listed.contains(&format!("/out{number}\"")), "{listed}");
        for below in ["", "/", "/passwd", "/nix/db/db.sqlite"] {
            let answer = server.get(&format!("/serve/{hash}/out{number}{below}"));
            assert_eq!(answer.status, 404, "{answer:?}");
            assert!(is_page(&answer));
        }
    }
    assert_eq!(server.get(&format!("/serve/{hash}/sub/out")).status, 404);
    assert_eq!(server.get(&format!("/serve/{hash}/self")).status, 404);
    let follow = |place: &str| {
        let mut url = format!("/serve/{hash}/{place}");
        loop {
            let answer = server.get(&url);
            match answer.header("location") {
                Some(location) => url = resolve(&url, location),
                None => break answer.text(),
            }
        }
    };
    assert_eq!(follow("in"), "the file");
    assert_eq!(follow("sub/in"), "the file");
    assert_eq!(follow("up/in"), "the file");
    assert_eq!(follow("other"), "the other path");
    for place in [
        "..%2f..%2fetc%2fpasswd",
        "../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "sub/%2e%2e/file",
        "sub//in",
        "/etc/passwd",
        "file/",
        "file/x",
        "sub%00",
        "%zz",
        "sub%2fin",
    ] {
        let answer = server.get(&format!("/serve/{hash}/{place}"));
        assert_eq!(answer.status, 404, "{place}: {answer:?}");
    }
}

#[test]
fn files_are_sent_unchanged_and_cannot_run_code() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("files");
    std::fs::create_dir_all(root.join("doc")).unwrap();
    let content: Vec<u8> = (0..200_000_u32)
        .flat_map(|i| (i % 251).to_le_bytes())
        .collect();
    std::fs::write(root.join("data"), &content).unwrap();
    std::fs::write(root.join("page.html"), "<script>alert(1)</script>").unwrap();
    std::fs::write(root.join("doc/index.html"), "the index").unwrap();
    std::fs::write(root.join("README"), "käse\n").unwrap();
    std::fs::write(root.join("script"), "<script>alert(1)</script>").unwrap();
    std::fs::write(root.join("long"), vec![b'a'; 4 << 20]).unwrap();
    std::fs::write(root.join("longer"), vec![b'a'; (4 << 20) + 1]).unwrap();
    let path = store.add(&root);
    let server = serve(&store);
    let base = format!("/serve/{}", hash_part(&path));
    let url = |place: &str| format!("{base}/{place}");

    for place in ["data", "page.html", "README"] {
        let answer = server.get(&url(place));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("sandbox; default-src 'none';"),
            "{policy}"
        );
        assert!(
            !policy.contains("allow-") && !policy.contains("script"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("x-robots-tag"), Some("noindex"));
    }
    let data = server.get(&url("data"));
    assert_eq!(data.body, content);
    assert_eq!(
        data.header("content-type"),
        Some("application/octet-stream")
    );
    let saved = Some("attachment; filename*=UTF-8''data");
    assert_eq!(data.header("content-disposition"), saved);
    let text = server.get(&url("README"));
    assert_eq!(
        text.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    let saved = server.get(&url("README?save"));
    assert!(
        saved
            .header("content-disposition")
            .unwrap()
            .starts_with("attachment")
    );

    let tag = data.header("etag").unwrap();
    let part = server.request("GET", &url("data"), &["Range: bytes=1000-1999"]);
    assert_eq!((part.status, &*part.body), (206, &content[1000..2000]));
    assert_eq!(part.header("content-range"), Some("bytes 1000-1999/800000"));
    let same = format!("If-Range: {tag}");
    let part = server.request("GET", &url("data"), &["Range: bytes=-5", &same]);
    assert_eq!((part.status, &*part.body), (206, &content[799_995..]));
    let changed = ["Range: bytes=0-5", "If-Range: \"other\""];
    assert_eq!(server.request("GET", &url("data"), &changed).status, 200);
    let beyond = server.request("GET", &url("data"), &["Range: bytes=800000-"]);
    assert_eq!(beyond.status, 416);
    let known = format!("If-None-Match: {tag}");
    assert_eq!(server.request("GET", &url("data"), &[&known]).status, 304);
    let head = server.request("HEAD", &url("data"), &[]);
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("800000"))
    );
    assert!(head.body.is_empty());

    // Short text has a page with a way back; the file itself stays as it is.
    let limit: usize = 4 << 20;
    let shown = page(&server, &url("README?view"));
    assert!(shown.contains(">1</a>käse"), "{shown}");
    let links: Vec<String> = references(&shown)
        .iter()
        .map(|reference| resolve(&url("README"), reference))
        .collect();
    for link in [
        &format!("{base}/?list"),
        &url("README"),
        &url("README?save"),
    ] {
        assert!(links.contains(link), "{link}: {links:?}");
    }
    let shown = page(&server, &url("script?view"));
    assert!(
        shown.contains("&lt;script&gt;") && !shown.contains("<script>"),
        "{shown}"
    );
    assert!(page(&server, &url("long?view")).len() > limit);
    for raw in ["longer?view", "data?view", "page.html?view", "README"] {
        assert!(!is_page(&server.get(&url(raw))), "{raw}");
    }

    // A directory with an index file shows that file, as in harmonia.
    let moved = server.get(&url("doc"));
    assert_eq!(
        resolve(&url("doc"), moved.header("location").unwrap()),
        url("doc/")
    );
    assert_eq!(server.get(&url("doc/")).text(), "the index");
    assert!(page(&server, &url("doc/?list")).contains("index.html"));
}

#[test]
fn pages_do_not_show_collected_paths() {
    let store = OwnStore::new();
    let path = store.add_file("gone", b"soon gone");
    let server = serve(&store);
    let hash = hash_part(&path);
    assert_eq!(server.get(&format!("/serve/{hash}")).text(), "soon gone");
    assert_eq!(server.get(&format!("/path/{hash}")).status, 200);
    // Keep the files, as after a crash: only the database decides which paths are valid.
    let database = store.database();
    let delete = format!("delete from ValidPaths where path = '{path}'");
    testkit::sqlite::run(&database, &delete);
    for url in [
        format!("/serve/{hash}"),
        format!("/path/{hash}"),
        format!("/search?q={hash}"),
    ] {
        let answer = server.get(&url);
        assert_eq!(answer.status, 404, "{url}: {answer:?}");
        assert!(answer.text().contains("No such path"), "{url}");
    }
}

#[test]
fn a_large_directory_is_split_into_pages() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("large");
    std::fs::create_dir(&root).unwrap();
    for number in 0..2500 {
        std::fs::write(root.join(format!("{number}")), "").unwrap();
    }
    std::fs::create_dir(root.join("the last by name")).unwrap();
    let path = store.add(&root);
    let server = serve(&store);
    let url = format!("/serve/{}/", hash_part(&path));
    let names = |page: &str| {
        let parts = page.split("<bdi>").skip(1);
        let names = parts.map(|part| part.split('<').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    // Directories come first, and numbers are sorted as numbers. The pager is above and below.
    let first = page(&server, &url);
    assert_eq!(names(&first)[..3], ["the last by name", "0", "1"]);
    assert!(first.contains("1 to 1,000 of 2,501 entries"), "{first}");
    assert!(first.contains("Page 1 of 3"), "{first}");
    let pages = |page: &str| {
        let mut all = references(page);
        all.retain(|url| url.starts_with("?list"));
        all
    };
    assert_eq!(pages(&first), ["?list&page=2", "?list&page=2"]);
    let second = page(&server, &format!("{url}?list&page=2"));
    assert_eq!(names(&second)[..2], ["999", "1000"]);
    let around = ["?list", "?list&page=3", "?list", "?list&page=3"];
    assert_eq!(pages(&second), around);
    let third = page(&server, &format!("{url}?list&page=3"));
    assert_eq!(names(&third).last().unwrap(), "2499");
    assert_eq!(pages(&third), ["?list&page=2", "?list&page=2"]);
    for beyond in ["4", "4294967295", "0", "x", "-1"] {
        page(&server, &format!("{url}?list&page={beyond}"));
    }
}

/// The server has health checks at the conventional URLs.
#[test]
fn health_and_readiness_are_reported() {
    let store = OwnStore::new();
    store.add_file("plain", b"plain");
    let server = serve(&store);
    let health = server.get("/healthz");
    assert_eq!((health.status, &*health.text()), (200, "ok\n"));
    assert_eq!(health.header("cache-control"), Some("no-store"));
    assert_eq!(server.request("HEAD", "/healthz", &[]).status, 200);
    assert_eq!(server.request("POST", "/healthz", &[]).status, 405);
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &*ready.text()), (200, "ready\n"));
    let version = server.get("/version").text();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    assert!(version.contains("\"name\":\"nix-serve\""), "{version}");
    let database = store.database();
    let away = database.with_extension("away");
    std::fs::rename(&database, &away).unwrap();
    eventually("it is not ready", || server.get("/readyz").status == 503);
    let ready = server.get("/readyz").text();
    assert_eq!(ready, "the store cannot be read\n");
    assert_eq!(server.get("/healthz").status, 200);
    std::fs::rename(&away, &database).unwrap();
    eventually("it is ready again", || server.get("/readyz").status == 200);
}

/// Links stay below the prefix, whether the server or a proxy adds it.
#[test]
fn links_stay_below_the_prefix() {
    let store = OwnStore::new();
    let path = store.add_file("plain", b"plain");
    let server = ServerProcess::start(nix_serve().args([
        "--pages",
        "--path",
        "/team/a",
        "--store",
        &local(store.root()),
    ]));
    let moved = server.get("/team/a");
    assert_eq!(
        resolve("/team/a", moved.header("location").unwrap()),
        "/team/a/"
    );
    for url in [
        "/team/a/".to_owned(),
        format!("/team/a/path/{}", hash_part(&path)),
    ] {
        for reference in references(&page(&server, &url)) {
            let target = resolve(&url, reference.trim_start_matches("#main"));
            assert!(
                target.starts_with("/team/a/"),
                "{url}: {reference}: {target}"
            );
            assert!(matches!(server.get(&target).status, 200 | 302), "{target}");
        }
    }
    assert_eq!(
        server.request("GET", "/", &[HTML]).text(),
        "File not found.\n"
    );
}
