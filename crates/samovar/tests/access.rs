//! Real Nix clients can log in to a private cache. Clients without a login get nothing from it.

#[path = "../../nix-serve/tests/support_browser/mod.rs"]
mod support_browser;

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support_browser::{Browser, LOOKS};

use support::{File, hash, realise, realise_with, sample, secret_file, serve, status, token, user};
use testkit::eventually;
use testkit::nix::Nix;
use testkit::process::Process;

const OTHERS: &str = "
[caches.nobody]
[caches.nobody.access]
networks = [\"192.0.2.0/24\"]
[caches.hidden]
[caches.hidden.access]
networks = [\"192.0.2.0/24\"]
refuse-with = \"404\"
[caches.open]
";

#[test]
fn nix_with_and_without_credentials() {
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let users = user("ada", "secret") + &user("", "nameless");
    let users = secret_file(folder, "users", &users);
    let (line, token) = token("ci");
    let tokens = secret_file(folder, "tokens", &line);
    file.write(&format!(
        "admin.listen = []\n\
         [caches.ours]\n[caches.ours.access]\nusers-file = {users:?}\ntokens-file = {tokens:?}\n\
         {OTHERS}"
    ));
    let (_server, address) = serve(&file);
    let (ours, path) = (format!("http://{address}/ours"), sample("fixed"));
    for nix in Nix::newer() {
        for (password, is_in) in [("secret", true), (&*token, true), ("wrong", false)] {
            let netrc = format!("machine 127.0.0.1 login ada password {password}\n");
            let output = realise_with(&nix, &ours, &path, &netrc);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), is_in, "{netrc}{text}");
        }
        // A client tries the next cache in its list.
        let list = format!("{ours} http://{address}/open");
        let output = realise_with(&nix, &list, &path, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
    for (netrc, is_in) in [
        ("machine 127.0.0.1 login ada password secret\n", true),
        (
            &*format!("machine 127.0.0.1 login whoever password {token}\n"),
            true,
        ),
        ("machine 127.0.0.1 password nameless\n", true),
        ("machine 127.0.0.1 login ada password wrong\n", false),
        ("", false),
    ] {
        let output = realise(&ours, &path, netrc);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_in, "{netrc}{text}");
    }
    // A client tries the next cache in its list, however the first one refuses it.
    for first in ["ours", "nobody", "hidden"] {
        let list = format!("http://{address}/{first} http://{address}/open");
        let output = realise(&list, &path, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{first}: {text}");
    }
}

#[test]
fn password_guessing_does_not_affect_known_clients() {
    const GUESSERS: usize = 50;
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let users = secret_file(folder, "users", &user("ada", "secret"));
    file.write(&format!(
        "admin.listen = []\n\
         [access]\nusers-file = {users:?}\ntrusted-proxies = [\"127.0.0.1\"]\n"
    ));
    let (_server, address) = serve(&file);
    // The base-64 text encodes the login ada:secret.
    let known = "Authorization: Basic YWRhOnNlY3JldA==\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let path = format!("/{}.narinfo", hash(&sample("fixed")));
    assert_eq!(status(&address, &path, known), 200);
    let is_over = AtomicBool::new(false);
    let is_prompt = std::thread::scope(|scope| {
        for guesser in 0..GUESSERS {
            let (address, is_over) = (&address, &is_over);
            scope.spawn(move || {
                for number in 0_u32.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    // Each attacker uses many addresses, so the limit per address does not stop the
                    // attack.
                    let from = format!("X-Forwarded-For: 198.51.{guesser}.{}", number % 256);
                    let guess = format!("Authorization: Bearer x\r\n{from}\r\n");
                    assert_eq!(status(address, "/nix-cache-info", &guess), 401);
                    let guess = format!("Authorization: Basic {}\r\n{from}\r\n", base64(number));
                    let status = status(address, "/nix-cache-info", &guess);
                    assert!([401, 429, 503].contains(&status), "{status}");
                }
            });
        }
        let measure = || {
            let times = (0..300).map(|_| {
                let start = Instant::now();
                assert_eq!(status(&address, &path, known), 200);
                start.elapsed()
            });
            let mut times: Vec<Duration> = times.collect();
            times.sort_unstable();
            let (median, late) = (times[150], times[297]);
            eprintln!("median {median:?}, 99th of a hundred {late:?}");
            late
        };
        // Other work on the machine may delay some measurements; guesses would delay every one.
        let mut late = std::iter::repeat_with(measure).take(10);
        let is_prompt = late.any(|late| late < Duration::from_secs(1));
        is_over.store(true, Ordering::Relaxed);
        is_prompt
    });
    assert!(is_prompt, "known users wait for guesses");
}

/// Returns the base-64 of `ada:` and a password of eleven digits.
fn base64(number: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("ada:{number:011}");
    let group = |bytes: &[u8]| {
        let bits = bytes
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift & 63) as usize]))
    };
    text.as_bytes().chunks(3).flat_map(group).collect()
}

/// The list of caches has the texts of the server, and leads to caches with passwords. A browser
/// gets a page that explains what to do, and other clients get text.
#[test]
fn browsers_find_caches_with_passwords() {
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let users = secret_file(folder, "users", &user("ada", "secret"));
    file.write(&format!(
        "admin.listen = []\ntitle = \"Our caches\"\ndescription = \"Built here.\"\n\
         [caches.ours]\ndescription = \"confidential\"\n\
         [caches.ours.access]\nusers-file = {users:?}\n{OTHERS}"
    ));
    let (_server, address) = serve(&file);
    let get = |path: &str, fields: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
        testkit::http1::exchange(address.parse().unwrap(), request.as_bytes())
    };
    let list = get("/", "").text();
    for part in [
        "<h1>Our caches</h1>",
        "Built here.",
        "<a href=\"./ours/\">/ours/</a>",
        "Needs a user name and a password.",
        "<a href=\"./open/\">open</a>",
    ] {
        assert!(list.contains(part), "{part}: {list}");
    }
    for hidden in ["confidential", "/nobody", "/hidden"] {
        assert!(!list.contains(hidden), "{hidden}: {list}");
    }
    let known = "Authorization: Basic YWRhOnNlY3JldA==\r\n";
    let wrong = "Authorization: Basic YWRhOndyb25n\r\n";
    assert!(get("/", known).text().contains("confidential"));
    assert!(get("/ours/", known).text().contains("<h1>ours</h1>"));
    for fields in ["", wrong] {
        let page = get("/ours/", &format!("Accept: text/html,*/*\r\n{fields}"));
        let text = page.text();
        assert_eq!(page.status, 401, "{text}");
        assert!(
            page.header("www-authenticate")
                .unwrap()
                .starts_with("Basic realm=")
        );
        assert!(text.contains("<h1>Not signed in</h1>") && !text.contains("confidential"));
        let plain = get("/ours/nix-cache-info", &format!("Accept: */*\r\n{fields}"));
        let is_text = plain.header("content-type") == Some("text/plain");
        assert!(plain.status == 401 && is_text, "{plain:?}");
    }
    // The page contains all that it needs, because the style sheet needs the password too. A
    // browser shows it once the user has closed the dialog, which tests cannot do.
    let page = get("/ours/", "Accept: text/html,*/*\r\n").text();
    assert!(
        page.contains("<title>Not signed in · Samovar</title>"),
        "{page}"
    );
    assert!(!page.contains("<link") && !page.contains("src="), "{page}");
    let browser = Browser::start();
    browser.open("about:blank");
    let tree = browser.tell("Page.getFrameTree", json!({}));
    let frame = &tree["frameTree"]["frame"]["id"];
    let content = json!({ "frameId": frame, "html": page });
    browser.tell("Page.setDocumentContent", content);
    for look in LOOKS {
        browser.look(look);
        let name = format!("not-signed-in-{}", look.name);
        browser.picture(&name);
        browser.assert_accessible(&name);
    }
}

/// A shared cache such as that of nginx stores answers to requests with credentials, unless they
/// are private.
#[test]
fn a_proxy_does_not_give_a_private_answer_to_others() {
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let users = secret_file(folder, "users", &user("ada", "secret"));
    file.write(&format!(
        "admin.listen = []\npages = true\naccess.users-file = {users:?}\n"
    ));
    let (_server, address) = serve(&file);
    let path = sample("fixed");
    let narinfo = format!("/{}.narinfo", hash(&path));
    let ask = |arguments: &[&str]| {
        let mut curl = Command::new("curl");
        let output = curl.args(["-s", "-i"]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let direct = |target: &str| {
        let url = format!("http://{address}{target}");
        ask(&["-u", "ada:secret", &url])
    };
    let text = direct(&narinfo);
    let nar = text.lines().find_map(|line| line.strip_prefix("URL: "));
    let nar = format!("/{}", nar.unwrap().trim_end());
    let listing = format!("/{}.ls", hash(&path));
    let page = format!("/path/{}", hash(&path));
    let answers = [&*narinfo, &*nar, &*listing, "/nix-cache-info", "/absent"];
    let pages = ["/", &*page, "/search?q=fixed"];
    for target in answers.into_iter().chain(pages) {
        // The first answer comes from a worker, later ones of some targets from an I/O thread.
        for _ in 0..3 {
            let answer = direct(target).to_ascii_lowercase();
            let mut fields = answer
                .lines()
                .filter_map(|line| line.strip_prefix("cache-control: "));
            assert!(
                fields.any(|value| value.starts_with("private")),
                "{target}: {answer}"
            );
        }
    }
    let program = Path::new("/usr/sbin/nginx");
    if !program.exists() {
        return;
    }
    let socket = folder.join("nginx.socket");
    let config = folder.join("nginx.conf");
    let own = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "daemon off; master_process off; pid {pid}; error_log stderr;\nevents {{}}\n\
         http {{ access_log off; proxy_cache_path {cache} keys_zone=all:1m;\n\
         client_body_temp_path {a}; proxy_temp_path {b}; fastcgi_temp_path {c};\n\
         uwsgi_temp_path {d}; scgi_temp_path {e};\n\
         server {{ listen unix:{socket}; location / {{ proxy_pass http://{address};\n\
         proxy_cache all; proxy_cache_valid 200 1h; }} }} }}\n",
        pid = own("pid"),
        cache = own("cache"),
        a = own("a"),
        b = own("b"),
        c = own("c"),
        d = own("d"),
        e = own("e"),
        socket = socket.display(),
    );
    fs::write(&config, text).unwrap();
    let mut nginx = Command::new(program);
    let nginx = nginx.arg("-c").arg(&config).arg("-p").arg(folder);
    let _nginx = Process::spawn(nginx);
    let through = |target: &str, arguments: &[&str]| {
        let socket = socket.display().to_string();
        let url = format!("http://proxy{target}");
        ask(&[&["--unix-socket", &socket, &url], arguments].concat())
    };
    eventually("nginx answers", || {
        through("/nix-cache-info", &[]).contains(" 401 ")
    });
    for target in answers {
        let own = through(target, &["-u", "ada:secret"]);
        assert!(!own.contains(" 401 "), "{target}: {own}");
        let other = through(target, &[]);
        assert!(other.contains(" 401 "), "{target}: {other}");
    }
}

#[test]
fn a_tls_key_that_all_users_can_read_causes_a_warning() {
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| folder.join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt"]);
    openssl.args(["ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a.test"]);
    openssl
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    file.write(&format!(
        "admin.listen = []\ntls = {{ certificate = {certificate:?}, key = {key:?} }}\n"
    ));
    let server = file.serve();
    server.wait_for("key.pem\" is readable by all users");
}

/// A proxy with a cache gives no refusal to a client that may read, also if the refusal is that of
/// a URL that belongs to no cache.
#[test]
fn refusals_are_not_stored() {
    let users = File::new("");
    fs::write(&users.path, user("ada", "secret")).unwrap();
    let caches = format!(
        "[caches.login]\naccess.users-file = {:?}\n\
         [caches.limited.access]\nnetworks = [\"127.0.0.0/8\"]\nrate = 1\nburst = 1\n{OTHERS}",
        users.path
    );
    for root in ["", "[caches.main]\nprefix = \"/\"\n"] {
        let file = File::new(&format!("{caches}{root}"));
        let (_server, address) = serve(&file);
        let fields = |path: &str| {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--output", "/dev/null", "--dump-header", "-"]);
            let output = curl
                .arg(format!("http://{address}{path}"))
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap().to_lowercase()
        };
        let narinfo = format!("{}.narinfo", hash(&sample("fixed")));
        for (cache, status) in [
            ("hidden", "404"),
            ("absent", "404"),
            ("login", "401"),
            ("nobody", "403"),
        ] {
            for name in ["nix-cache-info", &narinfo] {
                let answer = fields(&format!("/{cache}/{name}"));
                assert!(
                    answer.starts_with(&format!("http/1.1 {status}")),
                    "{answer}"
                );
                assert!(answer.contains("cache-control: no-store"), "{answer}");
            }
        }
        eventually("429", || {
            let answer = fields("/limited/nix-cache-info");
            let is_private = answer.contains("cache-control: private");
            assert!(
                is_private || answer.contains("cache-control: no-store"),
                "{answer}"
            );
            answer.starts_with("http/1.1 429")
        });
        let open = fields(&format!("/open/{narinfo}"));
        assert!(!open.contains("cache-control"), "{open}");
    }
}
