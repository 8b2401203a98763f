//! The web interface shows uploads, pins and the quota to clients that may read the cache. Its
//! pages are accessible.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../nix-serve/tests/support_browser/mod.rs"]
mod support_browser;

mod support;
mod support_push;
mod support_uploads;

use support::{hash, samovar, sample, sample_store};
use support_browser::{Browser, LOOKS};
use support_push::Pusher;
use support_uploads::{MadePath, Running, Site, send};
use testkit::process::output;

/// A server with three uploaded paths. `app` refers to `lib` and is pinned.
struct Scene {
    server: Running,
    lib: MadePath,
    app: MadePath,
    secret: MadePath,
    /// A token with the right to read.
    reader: String,
}

impl Scene {
    fn new(site: &Site) -> Self {
        let lib = MadePath::new("lib");
        let app = MadePath::new("app").referring_to(&lib.store_path);
        let secret = MadePath::new("secret");
        let server = site.start();
        let token = site.token(&["--name", "builder-7"]);
        for path in [&lib, &app, &secret] {
            server.publish(&token, path);
        }
        let mut pin = samovar();
        pin.args(["pin", "add", "release", &app.store_path]);
        pin.args(["--expires", "30d", "--storage"]);
        output(pin.arg(site.storage()));
        Self {
            server,
            lib,
            app,
            secret,
            reader: site.token(&["--name", "reader", "--rights", "read"]),
        }
    }

    fn page(&self, target: &str) -> String {
        let page = self.server.get(target);
        assert_eq!(page.status, 200, "{target}");
        page.text()
    }

    fn page_of(&self, path: &MadePath) -> String {
        self.page(&format!("/path/{}", path.hash_part()))
    }

    /// Returns a page as a client with a token that may read pins sees it.
    fn private_page(&self, target: &str) -> String {
        let page = self.server.request("GET", target, &self.reader);
        assert_eq!(page.status, 200, "{target}");
        page.text()
    }
}

#[track_caller]
fn assert_shows(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn recent_uploads_pins_and_quota_are_shown() {
    let site = Site::new();
    site.configure_empty("uploads.quota = \"1 GiB\"\n");
    let scene = Scene::new(&site);
    let uploads = "<dt>Uploads</dt><dd><a href=\"./uploads\">3 paths</a></dd>";
    assert_shows(&scene.page("/"), &["<dt>Paths</dt><dd>0</dd>", uploads]);
    let uploads = scene.private_page("/uploads");
    let link = |path: &MadePath| format!("href=\"./path/{}\"", path.hash_part());
    let parts = [
        "builder-7",
        "1.0 GiB",
        &*link(&scene.lib),
        &*link(&scene.app),
        "pinned as <bdi>release</bdi>@1",
    ];
    assert_shows(&uploads, &parts);
    let lib = scene.page_of(&scene.lib);
    let referrer = format!("href=\"./../path/{}\"", scene.app.hash_part());
    let file = format!("href=\"./..{}\"", scene.lib.file_target());
    assert_shows(&lib, &["builder-7", "this path only", &referrer, &file]);
    let app = scene.private_page(&format!("/path/{}", scene.app.hash_part()));
    assert_shows(&app, &["release", ", generation 1", "in 2 uploaded paths"]);
    let found = scene
        .server
        .get(&format!("/search?q={}", scene.app.store_path));
    assert_eq!(found.status, 302);
    let absent = scene.server.get("/path/00000000000000000000000000000000");
    assert_eq!(absent.status, 404);
}

/// Returns the rows of a table of uploads, each as HTML.
fn uploads(page: &str) -> Vec<String> {
    let list = page.split("id=\"recent\"").nth(1).unwrap();
    let body = list.split("<tbody>").nth(1).unwrap();
    let body = body.split("</tbody>").next().unwrap();
    let rows = body.split("<tr>").skip(1);
    rows.map(str::to_owned).collect()
}

/// Of a push, the page shows the path that was named. Its closure is folded.
#[test]
fn paths_that_were_pushed_for_another_path_are_folded() {
    let site = Site::new();
    site.configure_empty("");
    let scene = Scene::new(&site);
    let leaf = MadePath::new("leaf");
    let tool = MadePath::new("tool").referring_to(&leaf.store_path);
    let top = MadePath::new("top").referring_to(&tool.store_path);
    let other = MadePath::new("other").referring_to(&scene.lib.store_path);
    let token = site.token(&["--name", "builder-8"]);
    for path in [&leaf, &tool, &top, &other] {
        scene.server.publish(&token, path);
    }
    let link = |path: &MadePath| format!("href=\"./path/{}\"", path.hash_part());
    let page = scene.page("/uploads");
    let rows = uploads(&page);
    let heads: Vec<&str> = rows
        .iter()
        .map(|row| row.split("</a>").next().unwrap())
        .collect();
    let named = [&other, &top, &scene.secret, &scene.app];
    assert_eq!(heads.len(), named.len(), "{heads:?}");
    for (head, path) in heads.iter().zip(named) {
        assert!(head.contains(&link(path)), "{head}");
    }
    assert_shows(
        &rows[1],
        &["2 paths of its closure", &link(&tool), &link(&leaf)],
    );
    assert_shows(&rows[3], &["1 path of its closure", &link(&scene.lib)]);
    assert!(!rows[0].contains("closure") && !rows[2].contains("closure"));
    // A path that is pushed again later is not pushed for the earlier path.
    site.sql("update path set registered_at = registered_at - 3600 where name = 'leaf'");
    let rows = uploads(&scene.page("/uploads"));
    assert_shows(&rows[1], &["1 path of its closure"]);
    assert_shows(rows.last().unwrap(), &[&link(&scene.lib)]);
    assert!(
        rows.iter()
            .any(|row| row.split("</a>").next().unwrap().contains(&link(&leaf)))
    );
    // Hidden paths hide no others.
    drop(scene);
    site.configure_empty("[policy]\ndeny = [{ names = [\"app\", \"tool\"] }]\n");
    let server = site.start();
    let page = server.get("/uploads").text();
    assert!(
        !page.contains(">app<") && !page.contains(">tool<"),
        "{page}"
    );
    for name in [">lib<", ">leaf<", ">top<"] {
        assert!(page.contains(name), "{name}: {page}");
    }
}

/// The page of a path has one heading for its referrers and one for its closure, also if the path
/// is in the Nix store and was uploaded.
#[test]
fn a_path_in_both_stores_has_each_heading_once() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));
    let lib = sample("no_references");
    output(&mut pusher.push(&server.url(), &[&lib]));
    let own = MadePath::new("own").referring_to(&lib);
    server.publish(&site.token(&[]), &own);
    let page = server.get(&format!("/path/{}", hash(&lib))).text();
    assert_shows(&page, &["<h2 id=\"upload\">", ">own<"]);
    for heading in ["Used by", "<dt>Closure"] {
        assert_eq!(page.matches(heading).count(), 1, "{heading}: {page}");
    }
    for gone in ["Closure, if uploaded", "Used by uploaded"] {
        assert!(!page.contains(gone), "{page}");
    }
    let used_by = page.split("Used by").nth(1).unwrap();
    assert!(used_by.contains(own.hash_part()), "{used_by}");
}

/// A browser that opens the URL that clients push to sees what was pushed. Other clients do not.
#[test]
fn the_url_for_uploads_leads_a_browser_to_the_list() {
    let site = Site::new();
    site.configure_empty("");
    let server = site.start();
    let get = |fields: &str| send(server.address, "GET", "/upload", fields, "");
    let page = get("Accept: text/html,*/*;q=0.8\r\n");
    assert_eq!(
        (page.status, page.header("location")),
        (302, Some("./uploads"))
    );
    assert_eq!(get("").status, 404);
}

/// Pins are private also in a public cache: the pages show them to the clients to which the URLs of
/// pins show them.
#[test]
fn pins_are_shown_only_to_tokens_that_may_read_them() {
    let site = Site::new();
    site.configure_empty("");
    let scene = Scene::new(&site);
    let token = |rights: &str| site.token(&["--name", rights, "--rights", rights]);
    let pages = ["/uploads", &format!("/path/{}", scene.app.hash_part())];
    for (token, may_read) in [
        ("", false),
        (&*token("push"), false),
        (site.expired_token(), false),
        (&*token("pin"), true),
        (&*scene.reader, true),
    ] {
        let list = scene.server.request("GET", "/upload/pin/", token);
        assert_eq!(list.status == 200, may_read, "{}", list.status);
        for target in pages {
            let page = scene.server.request("GET", target, token);
            assert_eq!(page.status, 200, "{target}");
            let page = page.text();
            assert_shows(&page, &["builder-7"]);
            assert_eq!(page.contains("release"), may_read, "{target}: {page}");
        }
    }
}

/// A browser sends no password to a public cache that never asked for one.
#[test]
fn a_browser_signs_in_to_see_pins() {
    let site = Site::new();
    site.configure_empty("");
    let scene = Scene::new(&site);
    assert_shows(&scene.page("/uploads"), &["href=\"./uploads?sign-in=\""]);
    let asked = scene.server.get("/uploads?sign-in=");
    assert_eq!(asked.status, 401);
    let challenge = asked.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Basic "), "{challenge}");
    let parts = [
        "<title>Not signed in · Samovar</title>",
        "href=\"./uploads\"",
    ];
    assert_shows(&asked.text(), &parts);
    let signed = scene
        .server
        .request("GET", "/uploads?sign-in=", &scene.reader);
    assert_eq!(
        (signed.status, signed.header("location")),
        (302, Some("./uploads"))
    );
}

/// Requests with a token count too, valid or forged, and a valid one counts alone.
#[test]
fn tokens_do_not_switch_the_rate_limit_off() {
    let site = Site::new();
    site.configure_empty("[access]\nrate = 1\nburst = 20\n");
    let server = site.start();
    let token = site.token(&[]);
    let admitted = |token: &str| {
        let statuses = (0..60).map(|_| server.request("GET", "/nix-cache-info", token).status);
        statuses.take_while(|status| *status == 200).count()
    };
    // The server has seen the token once an upload was authorized.
    let opened = server.request("POST", "/upload/push/1/open", &token);
    assert_eq!(opened.status, 200, "{}", opened.text());
    let valid = admitted(&token);
    assert!((20..60).contains(&valid), "{valid}");
    let forged = admitted("smv1_x");
    assert!((19..60).contains(&forged), "{forged}");
    assert!(admitted("") < 19);
}

/// A page of another site that a browser opens must not use the password that it remembers.
#[test]
fn a_page_of_another_origin_cannot_upload() {
    let site = Site::new();
    site.configure_empty("");
    let server = site.start();
    let token = site.token(&[]);
    let login = format!("Authorization: Bearer {token}\r\n");
    let open = |origin: &str| {
        let fields = format!("{login}{origin}");
        send(server.address, "POST", "/upload/push/1/open", &fields, "").status
    };
    for (origin, status) in [
        ("", 200),
        ("Origin: http://a\r\n", 200),
        ("Origin: https://a\r\n", 200),
        ("Origin: http://a:81\r\n", 403),
        ("Origin: http://evil.test\r\n", 403),
        ("Origin: null\r\n", 403),
    ] {
        assert_eq!(open(origin), status, "{origin}");
    }
}

#[test]
fn a_deny_rule_hides_a_path_from_all_pages() {
    let site = Site::new();
    site.configure_empty("[policy]\ndeny = [{ names = [\"secret\"] }]\n");
    let scene = Scene::new(&site);
    let name = &scene.secret.store_path[11..];
    assert!(!scene.page("/uploads").contains(name));
    assert!(!scene.private_page("/uploads").contains(name));
    assert_shows(&scene.private_page("/uploads"), &["release"]);
    let hash_part = scene.secret.hash_part();
    for target in [
        format!("/path/{hash_part}"),
        format!("/search?q={hash_part}"),
    ] {
        assert_eq!(scene.server.get(&target).status, 404, "{target}");
    }
}

#[test]
fn a_private_cache_shows_nothing_to_others() {
    let site = Site::new();
    site.configure_empty("[access]\nnetworks = [\"192.0.2.0/24\"]\n");
    let scene = Scene::new(&site);
    let path = format!("/path/{}", scene.app.hash_part());
    let pusher = site.token(&["--name", "pusher", "--rights", "push"]);
    for target in ["/uploads", &path] {
        assert_eq!(
            scene.server.request("GET", target, &scene.reader).status,
            200
        );
        for token in ["", &pusher] {
            let refused = scene.server.request("GET", target, token);
            assert!(matches!(refused.status, 401 | 403), "{}", refused.status);
            assert!(!refused.text().contains("builder-7"));
        }
    }
}

/// Viewing the page of a path does not count as a use. Only a download protects the path from the
/// collector.
#[test]
fn a_page_does_not_keep_a_path() {
    let site = Site::new();
    let scene = Scene::new(&site);
    site.sql("update path set condemned_at = 1 where name = 'lib'");
    assert_shows(&scene.page_of(&scene.lib), &["will be deleted unless used"]);
    let condemned = site.sql("select count(*) from path where condemned_at = 1");
    assert_eq!(condemned, "1");
}

#[test]
fn pages_are_accessible_in_every_mode() {
    let site = Site::new();
    site.configure_empty("uploads.quota = \"1 GiB\"\n");
    let scene = Scene::new(&site);
    let long = MadePath::new("python3.12-a-package-with-a-long-name-2026.11.28-dist");
    let token = site.token(&["--name", "builder-of-the-main-branch"]);
    scene.server.publish(&token, &long);
    let browser = Browser::start();
    let url = scene.server.url();
    let path = format!("/path/{}", scene.app.hash_part());
    for (name, target) in [
        ("uploads-public", "/uploads"),
        ("uploads", "/uploads"),
        ("uploaded-path", &path),
        ("landing-of-uploads", "/"),
        ("uploads-by-browser", "/upload"),
    ] {
        if name == "uploads" {
            // A login in a URL stands for one in the dialog of the browser, which tests cannot
            // fill in. The browser sends it to the other pages then.
            let signed = url.replace("://", &format!("://any:{}@", scene.reader));
            browser.open(&format!("{signed}/uploads?sign-in="));
        }
        browser.open(&format!("{url}{target}"));
        for look in LOOKS {
            browser.look(look);
            let name = format!("{name}-{}", look.name);
            browser.picture(&name);
            browser.assert_accessible(&name);
            let wide = "return [...document.querySelectorAll('.scrolls')]\
                        .filter(one => one.scrollWidth > one.clientWidth).length";
            assert_eq!(browser.run(wide), 0, "{name}");
        }
        let shows_pins = browser.run("return document.body.innerText.includes('release')");
        let may_show = !matches!(name, "uploads-public" | "landing-of-uploads");
        assert_eq!(shows_pins, may_show, "{name}");
    }
    let refused = |said: &String| said.contains("status of 401");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(refused), "{complaints:?}");
}
