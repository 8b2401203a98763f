//! In a real browser, no contents of a store run as script. All pages are accessible in light and
//! dark mode, on desktop and phone. Saves screenshots in cargo's directory for tests; `xtask
//! screenshots` copies some of them into the book.

mod support;
mod support_browser;
mod support_pages;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use support::{OwnStore, PATIENCE, ServerProcess, hash_part, key_pair, local, nix_serve, sample};
use support_browser::{Browser, LOOKS};

const ABSENT: &str = "/00000000000000000000000000000006.narinfo";

/// Returns whether a complaint of the browser is expected: that a resource is missing.
fn is_expected(complaint: &str) -> bool {
    complaint.contains("status of 404")
}

#[test]
fn pages_are_accessible_in_every_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = key_pair(dir.path(), "cache.example-1");
    let mut command = nix_serve();
    command.args(["--pages", "--store", &local(&support::sample_root())]);
    command.env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    let built = sample("built");
    let many = support::sample_list("closure").pop().unwrap();
    let tree = sample("tree");
    let listing = format!("/serve/{}/package-0007/", hash_part(&tree));
    let page = server.get(&listing).text();
    let source = support_pages::references(&page)
        .iter()
        .map(|reference| support_pages::resolve(&listing, reference))
        .find(|path| path.ends_with("?view"))
        .unwrap();
    let pages = [
        ("landing", "/".to_owned()),
        ("path", format!("/path/{}", hash_part(&many))),
        ("path-built", format!("/path/{}", hash_part(&built))),
        ("directory", listing),
        ("file", source),
        ("search", "/search?q=lib".to_owned()),
        ("closure", format!("/path/{}/closure", hash_part(&many))),
        (
            "absent",
            "/path/00000000000000000000000000000000".to_owned(),
        ),
    ];
    let browser = Browser::start();
    for (name, path) in &pages {
        browser.open(&format!("{}{path}", server.url()));
        for look in LOOKS {
            browser.look(look);
            if look.name == "desk-light" {
                browser.picture_of_window(&format!("book-{name}"));
            }
            let name = format!("pages-{name}-{}", look.name);
            browser.picture(&name);
            browser.assert_accessible(&name);
        }
    }
    let complaints = browser.complaints();
    assert!(
        complaints.iter().all(|said| is_expected(said)),
        "{complaints:#?}"
    );

    // The page shows the address under which it was requested as the URL of the cache.
    browser.open(&server.url());
    let text = "return document.querySelector('[data-label=\"/etc/nix/nix.conf\"] code').innerText";
    let conf = browser.run(text).as_str().unwrap().to_owned();
    assert!(
        conf.contains(&format!("extra-substituters = {}\n", server.url())),
        "{conf}"
    );
    let shown = "return [...document.querySelectorAll('.tabs .snippet')]\
                 .filter(one => one.offsetParent).map(one => one.dataset.label).join()";
    assert_eq!(browser.run(shown), "/etc/nix/nix.conf");
    browser.click("label[for=tab-1]");
    assert_eq!(browser.run(shown), "NixOS configuration");
    // The button and a live region report that the text was copied.
    browser.click("[data-label=\"NixOS configuration\"] button");
    let status = "document.querySelector('main > [role=status]').textContent";
    browser.wait_until(&format!("{status}.endsWith(' NixOS configuration')"));
    browser.wait_until(&format!("{status} === ''"));
    let label = "document.querySelector('[data-label=\"NixOS configuration\"] button').ariaLabel";
    browser.wait_until(&format!("{label} === 'Copy NixOS configuration'"));
    browser.type_into("#q", &format!("{built}\u{e007}"));
    browser.wait_until("document.querySelector('h1').innerText === 'built'");

    // Tabs need no script.
    browser.allow_scripts(false);
    browser.open(&server.url());
    browser.allow_scripts(true);
    browser.click("label[for=tab-2]");
    assert_eq!(browser.run(shown), "flake.nix");

    // Without script the pages are the same, with a hint that asks for the address.
    browser.allow_scripts(false);
    browser.open(&server.url());
    browser.allow_scripts(true);
    let shown = browser.run("return document.querySelector('main').innerText");
    assert!(
        shown
            .as_str()
            .unwrap()
            .contains("with the address of this page"),
        "{shown}"
    );
}

#[test]
fn a_build_log_is_legible_in_every_mode() {
    let store = OwnStore::new();
    let base_name = "0000000000000000000000000000000a-tool-1.2.drv";
    let dir = store.root().join("nix/var/log/nix/drvs/00");
    std::fs::create_dir_all(&dir).unwrap();
    let colours: String = (30..38).chain(90..98).fold(String::new(), |text, code| {
        text + &format!("\u{1b}[{code}mcolour {code}\u{1b}[0m and \u{1b}[1;{code}mbold\u{1b}[0m\n")
    });
    let long = format!("gcc {}\n", "-I/nix/store/include ".repeat(40));
    let word = format!(
        "{}\n<script>document.title = 'ran'</script>\n",
        "x".repeat(900)
    );
    let lines: String = (0..400)
        .map(|number| format!("compiling unit {number}\n"))
        .collect();
    std::fs::write(dir.join(&base_name[2..]), colours + &long + &word + &lines).unwrap();
    let server =
        ServerProcess::start(nix_serve().args(["--pages", "--store", &local(store.root())]));
    let browser = Browser::start();
    let url = format!("{}/build-log/{base_name}", server.url());
    browser.open(&url);
    for look in LOOKS {
        browser.look(look);
        let name = format!("pages-log-{}", look.name);
        browser.picture(&name);
        browser.assert_accessible(&name);
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // Works without scripts.
    browser.allow_scripts(false);
    browser.open(&format!("{url}#L300"));
    browser.allow_scripts(true);
    browser.wait_until("document.querySelector('#L300').getBoundingClientRect().top < innerHeight");
    browser.wait_until("scrollY > 0");
    let width = "return document.querySelector('.log').scrollWidth > innerWidth";
    assert_eq!(browser.run(width), false);
    browser.click("#wrap");
    assert_eq!(browser.run(width), true);
    browser.picture("pages-log-unwrapped");
    browser.assert_accessible("unwrapped");
}

#[test]
fn no_file_of_a_store_runs_script() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("hostile");
    std::fs::create_dir(&root).unwrap();
    let script = "<title>shown</title><script>document.title = 'ran'</script>\
                  <img src='x' onerror=\"document.title = 'ran'\">\
                  <svg onload=\"document.title = 'ran'\"></svg>\
                  <iframe src='/' onload=\"document.title = 'ran'\"></iframe>\
                  <meta http-equiv='refresh' content='0;url=/ran'>\
                  <link rel='stylesheet' href='style.css'><p id='styled'>text</p>\
                  <form action='/ran'><button id='send'>send</button></form>";
    std::fs::write(root.join("page.html"), script).unwrap();
    std::fs::write(root.join("style.css"), "#styled { color: rgb(1, 2, 3) }").unwrap();
    let svg = "<svg xmlns='http://www.w3.org/2000/svg'><title>shown</title>\
               <script>document.querySelector('title').textContent = 'ran'</script></svg>";
    std::fs::write(root.join("picture.svg"), svg).unwrap();
    std::fs::write(root.join("odd"), script).unwrap();
    for name in [
        b"<img src=x onerror=\"document.title='ran'\">".as_slice(),
        b"\"onmouseover=\"document.title='ran'",
        b"<a><script>document.title='ran'<script>",
        b"not\xffutf8",
        b"new\nline",
        "exe.\u{202e}txt".as_bytes(),
        b"javascript:document.title='ran'",
    ] {
        std::fs::write(root.join(OsStr::from_bytes(name)), "").unwrap();
        let link = [b"link ".as_slice(), name].concat();
        symlink(OsStr::from_bytes(name), root.join(OsStr::from_bytes(&link))).unwrap();
    }
    let path = store.add(&root);
    let server =
        ServerProcess::start(nix_serve().args(["--pages", "--store", &local(store.root())]));
    let base = format!("{}/serve/{}", server.url(), hash_part(&path));
    let browser = Browser::start();

    browser.open(&format!("{base}/"));
    browser.look(LOOKS[0]);
    browser.picture("pages-hostile");
    browser.assert_accessible("hostile");
    let count = browser.run("return document.querySelectorAll('tbody tr').length");
    assert_eq!(count, 18);
    let foreign = browser.run("return document.querySelectorAll('main img, main script').length");
    assert_eq!(foreign, 0);
    let protocols = "return [...document.links].every(link => link.protocol === 'http:')";
    assert_eq!(browser.run(protocols), true);

    browser.open(&format!("{base}/page.html"));
    let styled = "getComputedStyle(document.querySelector('#styled')).color === 'rgb(1, 2, 3)'";
    browser.wait_until(styled);
    browser.click("#send");
    assert_eq!(browser.run("return document.title"), "shown");
    assert_eq!(browser.url(), format!("{base}/page.html"));
    // The file gets an opaque origin, which differs from that of the cache.
    assert_eq!(browser.run("return origin"), "null");
    let refused = browser.complaints().join("\n");
    for what in ["script execution", "redirect", "Framing", "form submission"] {
        assert!(refused.contains(what), "{what}: {refused}");
    }

    browser.open(&format!("{base}/picture.svg"));
    let title = "return document.querySelector('title').textContent";
    assert_eq!(browser.run(title), "shown");
    // A text file is shown as text.
    browser.open(&format!("{base}/odd"));
    let text = browser
        .run("return document.body.innerText")
        .as_str()
        .unwrap()
        .to_owned();
    assert!(text.contains("<script>"), "{text}");
}

/// The status page updates live, during a download and requests for absent paths. It links paths
/// to their pages, and counts the bytes of served files.
#[test]
fn the_status_page_updates_itself() {
    let mut command = nix_serve();
    command.args([
        "--pages",
        "--admin",
        "127.0.0.1:0",
        "--store",
        &local(&support::sample_root()),
    ]);
    let server = ServerProcess::start(&mut command);
    let line = server.wait_for("metrics and status on http://");
    let admin = line.rsplit("//").next().unwrap().to_owned();
    let big = server.nar_url(&sample("big"));
    let mut slow = testkit::http1::Connection::connect(server.addr);
    slow.begin("GET", &big, &[]);
    for _ in 0..50 {
        server.narinfo(&sample("built"));
        server.get(ABSENT);
    }
    let browser = Browser::start();
    browser.open(&format!("http://{admin}/status"));
    browser.wait_until("document.querySelector('[data-live]').innerText === 'Live'");
    browser.wait_until("document.querySelector('progress')");
    browser.wait_until("document.querySelector('main').innerText.includes('00000000000000000000')");
    let tree = sample("tree");
    let listing = format!("/serve/{}/", hash_part(&tree));
    assert_eq!(server.get(&listing).status, 200);
    let page = |path: &str| format!("{}/path/{}", server.url(), hash_part(path));
    for (section, path) in [("requests", sample("built")), ("traffic", tree)] {
        let link = format!("a[href=\"{}\"]", page(&path));
        browser.wait_until(&format!(
            "[...document.querySelectorAll('section')].find(section => \
             section.innerText.startsWith('Top by {section}')).querySelector('{link}')"
        ));
    }
    assert_eq!(
        server
            .get(&format!("/path/{}", hash_part(&sample("built"))))
            .status,
        200
    );
    let cache = format!(".status-head a[href=\"{}/\"]", server.url());
    browser.wait_until(&format!("document.querySelector('{cache}')"));
    // A missing path has no page.
    let link = "return document.querySelectorAll('a[href*=\"0000000000\"]').length";
    assert_eq!(browser.run(link), 0);
    browser.wait_until("document.querySelectorAll('.figures .chart').length === 6");
    // Keep the traffic until the page has shown it.
    let (is_seen, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let closure = support::sample_list("closure");
        let urls = closure.iter().map(|path| server.nar_url(path));
        let narinfos = closure
            .iter()
            .map(|path| format!("/{}.narinfo", hash_part(path)));
        let targets: Vec<String> = urls.chain(narinfos).chain([ABSENT.to_owned()]).collect();
        let (addr, is_seen) = (server.addr, &is_seen);
        scope.spawn(move || {
            for target in targets.iter().cycle() {
                // Stop after a while even if the page never shows it.
                if is_seen.load(Ordering::Relaxed) || began.elapsed() > PATIENCE {
                    break;
                }
                let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                support::raw(addr, head.as_bytes());
            }
        });
        for look in LOOKS {
            browser.look(look);
            if look.name == "desk-light" {
                browser.picture_of_window("book-status");
            }
            let name = format!("pages-status-{}", look.name);
            browser.picture(&name);
            browser.assert_accessible(&name);
        }
        is_seen.store(true, Ordering::Relaxed);
    });
    // Updates arrive without a reload, and leave the user's selection intact.
    browser.run("getSelection().selectAllChildren(document.querySelector('h1'))");
    let before = "return document.querySelector('.figures').innerText";
    let before = browser.run(before).as_str().unwrap().to_owned();
    for _ in 0..50 {
        server.narinfo(&sample("built"));
    }
    browser.wait_until(&format!(
        "document.querySelector('.figures').innerText !== {}",
        serde_json::Value::from(before)
    ));
    assert_eq!(browser.run("return getSelection().toString()"), "Status");
    assert!(browser.complaints().iter().all(|said| is_expected(said)));
    // The page reports when it is no longer live.
    drop(slow);
    drop(server);
    browser.wait_until("document.querySelector('[data-live]').innerText.startsWith('Not live')");
}
