//! `samovar serve` applies its configuration file. A reload of an invalid file changes nothing.

mod support;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{File, Server, ask, bare, hash, samovar, sample, sample_store, serve, user};
use testkit::eventually;

/// Sends a GET request. Returns the response as text, from its status on.
fn get(address: &str, target: &str) -> String {
    ask(address, target, "")
}

#[test]
fn the_file_configures_the_server() {
    let file = File::new("[caches.team-a]\npriority = 10\n[caches.team-b]\nprefix = \"/b\"\n");
    let mut command = samovar();
    command.args(["serve", "--config"]).arg(&file.path);
    command.env("SAMOVAR_CACHES__TEAM_B__PRIORITY", "20");
    // The variables of clients, which may be set for a whole login, are not options.
    for variable in ["TOKEN", "CACHE", "CACHE_DIR", "STATE_DIR"] {
        command.env(format!("SAMOVAR_{variable}"), "x");
    }
    let server = Server::spawn(&mut command);
    let address = server.wait_for_address().to_string();
    assert!(get(&address, "/team-a/nix-cache-info").contains("\nPriority: 10\n"));
    assert!(get(&address, "/b/nix-cache-info").contains("\nPriority: 20\n"));
    assert!(get(&address, "/nix-cache-info").starts_with("404"));
    assert!(get(&address, "/team-ab/nix-cache-info").starts_with("404"));
    server.signal("TERM");
    server.wait_for("stopping: ");
}

/// The admin listener tells a load balancer as well that the roots of a policy are not known.
#[test]
fn a_server_that_knows_no_root_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let file = File::new(&format!(
        "admin.listen = \"127.0.0.1:0\"\npolicy.deny = [{{ roots = [{root:?}] }}]\n"
    ));
    let (server, address) = serve(&file);
    let line = server.wait_for("metrics and status on http://");
    let admin = line.rsplit("//").next().unwrap().trim();
    for address in [&*address, admin] {
        // Soon after the start, the admin listener also says that the store was not asked yet.
        eventually("the roots are the only reason", || {
            let ready = get(address, "/readyz");
            assert!(ready.starts_with("503"), "{ready}");
            ready.ends_with("\nthe roots of a policy are not known\n")
        });
    }
    assert!(get(admin, "/metrics").contains("\nsamovar_ready 0\n"));
    std::os::unix::fs::symlink(sample("self_reference"), &root).unwrap();
    for address in [&*address, admin] {
        eventually("it is ready", || get(address, "/readyz").starts_with("200"));
    }
}

/// Denied paths appear in no page, file, link or search result.
#[test]
fn pages_hide_denied_paths() {
    let hash = |key: &str| hash(&sample(key)).to_owned();
    let (denied, absent) = (hash("built"), hash("absent"));
    let (drv, other) = (hash("built_drv"), hash("tree"));
    let file = File::new("title = \"Team\"\n[policy]\ndeny = [{ names = [\"built\"] }]\n");
    let (_server, address) = serve(&file);
    let page = |path: &str| {
        let answer = get(&address, path);
        let head = answer.lines().filter(|line| !line.starts_with("Date: "));
        head.collect::<Vec<_>>().join("\n")
    };
    for url in [
        "/path/{}",
        "/serve/{}",
        "/serve/{}/",
        "/serve/{}/x",
        "/search?q={}",
    ] {
        let of = |hash: &str| page(&url.replace("{}", hash));
        assert!(of(&denied).starts_with("404"), "{url}");
        // The search field has the requested hash.
        let hides = of(&denied).replace(&*denied, &absent);
        assert_eq!(hides, of(&absent), "{url}");
    }
    assert!(page(&format!("/path/{other}")).starts_with("200"));
    assert!(!page(&format!("/path/{drv}")).contains(&format!("path/{denied}")));
    let landing = page("/");
    assert!(landing.contains("<h1>Team</h1>"), "{landing}");
    // The pages do not show the number of paths either.
    assert!(!landing.contains("<dt>Paths</dt>"), "{landing}");
}

#[test]
fn an_invalid_file_prevents_the_start() {
    let file = File::new("prioritty = 1\n");
    let output = samovar()
        .arg("serve")
        .env("SAMOVAR_CONFIG", &file.path)
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "samovar: error: {}:3: unknown option `prioritty`; did you mean `priority`?\n",
            file.path.display()
        )
    );
}

#[test]
fn an_invalid_reload_keeps_the_old_configuration() {
    let file = File::new("priority = 10\n");
    let (server, address) = serve(&file);
    file.write("priority = \"high\"\n");
    server.signal("HUP");
    let line = server.wait_for("the configuration was not changed");
    assert!(line.contains("samovar.toml:3: priority must be"), "{line}");
    assert!(get(&address, "/nix-cache-info").contains("\nPriority: 10\n"));
    file.write("backlog = 5\npublic-url = \"http://a.example\"\n");
    server.signal("HUP");
    server.wait_for("without losing a request): backlog");
    // The failed reload before counts for nothing.
    server.wait_for("the configuration was reloaded; changed: priority, public-url");
    server.signal("HUP");
    server.wait_for("the configuration was reloaded; no option of a cache was changed");
    assert!(get(&address, "/nix-cache-info").contains("\nPriority: 30\n"));
    // The file names itself as the signing key, which is invalid.
    file.write(&format!("secret-key-files = {:?}\n", file.path));
    server.signal("HUP");
    server.wait_for("the configuration was not changed");
}

#[test]
fn the_configuration_is_shown_and_checked() {
    let file = File::new("priority = 10\n");
    let check = |words: &[&str]| {
        let mut command = samovar();
        command
            .args(["serve", "--check-config", "--config"])
            .arg(&file.path);
        command.args(words).output().unwrap()
    };
    let output = check(&["--log-verbose", "--set", "backlog=7"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let origin = format!("priority = 10  # {}:3\n", file.path.display());
    assert!(text.contains(&origin), "{text}");
    assert!(
        text.contains("\nlog.verbose = true  # --log-verbose\n"),
        "{text}"
    );
    assert!(text.contains("\nbacklog = 7  # --set\n"), "{text}");

    let output = check(&["--secret-key-files", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("\"/nowhere\" does not exist"), "{text}");
}

#[test]
fn harmonia_configurations_are_imported() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("harmonia.toml");
    fs::write(&theirs, "bind = \"127.0.0.1:0\"\npriority = 50\n").unwrap();
    let output = samovar()
        .args(["config", "import"])
        .arg(&theirs)
        .output()
        .unwrap();
    let ours = dir.path().join("samovar.toml");
    fs::write(&ours, output.stdout).unwrap();
    let mut command = samovar();
    command.args(["serve", "--store", &sample_store(), "--config"]);
    let server = Server::spawn(command.arg(&ours));
    let address = server.wait_for_address().to_string();
    assert!(get(&address, "/nix-cache-info").contains("\nPriority: 50\n"));
    assert!(get(&address, "/metrics").contains("\nsamovar_"));
    assert!(get(&address, "/health").contains("ok\n"));
}

#[test]
fn completions_and_man_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = samovar().args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("secret-key-files"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let output = samovar().arg("man").arg(&pages).output().unwrap();
    assert!(output.status.success());
    let serve = fs::read_to_string(pages.join("samovar-serve.1")).unwrap();
    assert!(serve.contains("priority"), "{serve}");
    let (_, synopsis) = serve.split_once(".SH SYNOPSIS\n").unwrap();
    let synopsis = synopsis.lines().next().unwrap();
    assert!(synopsis.len() < 80, "{synopsis}");
    let rendered = Command::new("man").arg(pages.join("samovar.1")).output();
    if let Ok(rendered) = rendered {
        assert!(rendered.status.success());
    }
}

/// Bash offers the words that an option takes, not the names of files.
#[test]
fn words_of_options_are_completed() {
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(samovar serve --verify ''); \
                  COMP_CWORD=3; _samovar samovar '' --verify; echo ${COMPREPLY[@]}";
    let mut bash = bare("bash");
    bash.args(["-c", script]).arg(samovar().get_program());
    let output = bash.output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert_eq!(words.trim(), "first never");
}

/// If there is no cache at `/`, a page lists the caches that the client may read, with their texts,
/// and the URLs of those that ask it for credentials. It does not list hidden caches.
#[test]
fn the_list_of_caches_follows_access_rules() {
    let users = File::new("");
    fs::write(&users.path, user("ada", "secret")).unwrap();
    let rules = |open: &str| {
        format!(
            "[caches.open]\ntitle = \"For <all>\"\n{open}\
             [caches.closed]\ntitle = \"Cache of the team\"\ndescription = \"Of a team\"\n\
             access.users-file = {0:?}\n[caches.bare]\npages = false\n\
             [caches.hidden.access]\nusers-file = {0:?}\nrefuse-with = \"404\"\n",
            users.path
        )
    };
    let file = File::new(&rules(""));
    let (server, address) = serve(&file);
    let overview = |login: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--write-out", "%{http_code}", "--user", login]);
        let output = curl.arg(format!("http://{address}/")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let anybody = get(&address, "/");
    assert!(anybody.starts_with("200"), "{anybody}");
    assert!(
        anybody.contains("href=\"./open/\">For &lt;all&gt;</a>"),
        "{anybody}"
    );
    for answer in [anybody, overview("ada:wrong"), overview("eve:secret")] {
        assert!(answer.contains("./open/"), "{answer}");
        assert!(
            answer.contains("href=\"./closed/\">/closed/</a>"),
            "{answer}"
        );
        for secret in ["Of a team", "of the team", "bare", "/hidden"] {
            assert!(!answer.contains(secret), "{secret}: {answer}");
        }
    }
    // Request the page twice, because the first answer is not cached yet.
    for _ in 0..2 {
        let ada = overview("ada:secret");
        assert!(
            ada.contains("href=\"./closed/\">Cache of the team</a>") && ada.contains("./open/"),
            "{ada}"
        );
        assert!(ada.contains("./hidden/"), "{ada}");
        assert!(ada.contains("Of a team") && !ada.contains("bare"), "{ada}");
    }
    let page = get(&address, "/");
    let style = page.split("href=\"./-/assets/").nth(1).unwrap();
    let style = style.split('"').next().unwrap();
    assert!(get(&address, &format!("/-/assets/{style}")).starts_with("200"));
    for (path, status) in [
        ("/open/", "200"),
        ("/closed/", "401"),
        ("/elsewhere", "404"),
        ("/healthz", "200"),
        ("/readyz", "200"),
        ("/version", "200"),
    ] {
        let answer = get(&address, path);
        assert!(answer.starts_with(status), "{path}: {answer}");
    }
    drop(server);

    // The server shows no hidden cache to a client without access. Health checks need no password.
    let nobody = format!(
        "access.users-file = {:?}\naccess.refuse-with = \"404\"\n",
        users.path
    );
    let file = File::new(&rules(&nobody));
    let (_server, address) = serve(&file);
    let list = get(&address, "/");
    assert!(
        list.contains("./closed/") && !list.contains("./open/"),
        "{list}"
    );
    for path in ["/healthz", "/readyz"] {
        assert!(get(&address, path).starts_with("200"), "{path}");
    }
}

/// Two caches of the sample store have different policies; a reload changes their keys.
#[test]
fn each_cache_has_its_own_rules() {
    let file = File::new("");
    let folder = file.path.parent().unwrap().to_owned();
    let profile = folder.join("profile");
    std::os::unix::fs::symlink(sample("self_reference"), &profile).unwrap();
    let rules = |more: &str| {
        file.write(&format!(
            "[caches.team-a]\npolicy.allow = [{{ roots = {profile:?} }}]\n\
             [caches.team-b]\nsigning.content-addresses = true\n{more}\
             [[caches.team-b.policy.allow]]\nsigned-by = [{:?}]\n\
             [[caches.team-b.policy.allow]]\nnames = [\"big\"]\n",
            sample("signed_by")
        ));
    };
    rules("");
    let (server, address) = serve(&file);
    let narinfo = |cache: &str, name: &str| {
        get(
            &address,
            &format!("/{cache}/{}.narinfo", hash(&sample(name))),
        )
    };
    let started = Instant::now();
    while narinfo("team-a", "self_reference").starts_with("503") {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the roots are followed"
        );
    }
    for (cache, name, status) in [
        ("team-a", "self_reference", "200"),
        ("team-a", "signed", "404"),
        ("team-a", "big", "404"),
        ("team-b", "self_reference", "404"),
        ("team-b", "signed", "200"),
        ("team-b", "big", "200"),
    ] {
        let answer = narinfo(cache, name);
        assert!(answer.starts_with(status), "{cache} {name}: {answer}");
    }
    assert!(narinfo("team-b", "big").contains("\nCA: fixed:r:sha256:"));
    let secret = folder.join("secret");
    let mut make = Command::new("nix-store");
    make.args([
        "--store",
        "dummy://",
        "--generate-binary-cache-key",
        "new-1",
    ]);
    let made = make.arg(&secret).arg(folder.join("public")).status();
    assert!(made.unwrap().success());
    rules(&format!(
        "secret-key-files = {secret:?}\nsigning.stored = \"keep\"\n"
    ));
    server.signal("HUP");
    server.wait_for("the configuration was reloaded");
    let answer = narinfo("team-b", "signed");
    assert!(
        answer.contains("\nSig: new-1:") && answer.contains("\nSig: test-1:"),
        "{answer}"
    );
    rules("policy.deny = [{ names = \"big\" }]\n");
    server.signal("HUP");
    server.wait_for("the configuration was reloaded");
    // The rules of one cache do not affect the others.
    assert!(narinfo("team-b", "big").starts_with("404"));
    assert!(narinfo("team-a", "self_reference").starts_with("200"));
}
