//! No program prints a password, a token or a signing key that it was given: not in its results,
//! errors and logs, at any verbosity.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::print_stdout,
    clippy::allow_attributes,
    reason = "a test says what it has not tested"
)]

mod support;
mod support_secrets;
mod support_uploads;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use support::{File, bare, samovar, sample, secret_file, user};
use support_secrets::{
    LOCAL, REQUESTS, Secret, Source, all_at_once, at_home, leaves, printed, switches, until,
    with_each_argument,
};
use support_uploads::{Running, Site};
use testkit::closed_port::ClosedPort;
use testkit::nix::key_pair;
use testkit::process::{Process, output};

/// The URLs with logins that each option and argument is given.
fn urls(secret: &Secret, host: &str) -> Vec<String> {
    let login = format!("ada:{}", secret.text);
    vec![
        format!("http://{login}@{host}/"),
        format!("http://{login}@{host}/#app"),
        format!("ftp://{login}@{host}/"),
        format!("http://{login}@no such host"),
        format!("http://{login}@{host}/\u{7f}"),
        // A character of the password was not percent-encoded.
        format!("http://ada:/{}@{host}/", secret.text),
        format!("http://ada:?{}@{host}/", secret.text),
        format!("http://ada:#{}@{host}/", secret.text),
    ]
}

/// The tables in `support_secrets` name each command once, and no command that sends requests is
/// among the local ones.
#[test]
fn every_command_is_in_a_table() {
    let all = leaves();
    let mut named = BTreeSet::new();
    for name in REQUESTS
        .iter()
        .map(|row| row.name)
        .chain(LOCAL.iter().copied())
    {
        assert!(
            all.contains_key(name),
            "there is no command `samovar {name}`"
        );
        named.insert(name.to_owned());
    }
    let missing: Vec<&String> = all.keys().filter(|name| !named.contains(*name)).collect();
    assert_eq!(
        missing,
        Vec::<&String>::new(),
        "add them to REQUESTS or LOCAL"
    );
    for name in LOCAL {
        let sends = ["url", "token-file", "netrc-file", "source", "ref"];
        let command = &all[*name];
        let sends = sends
            .iter()
            .find(|id| command.get_arguments().any(|arg| arg.get_id() == **id));
        assert_eq!(sends, None, "`samovar {name}` belongs to REQUESTS");
    }
}

/// Each option and argument of each command is given a URL that contains a login.
#[test]
fn no_command_prints_the_login_of_a_url_that_it_cannot_use() {
    let closed = ClosedPort::new();
    let secret = Secret::new("hunter2-of-a-url");
    let urls = urls(&secret, &closed.addr().to_string());
    let mut commands = Vec::new();
    for (name, command) in &leaves() {
        commands.extend(with_each_argument(name, command, &urls));
    }
    all_at_once(&commands, |words| {
        let home = tempfile::tempdir().unwrap();
        printed(&secret, at_home(home.path()).args(words));
    });
}

/// A private cache with a path and a ref, and a directory that is a workspace of the ref.
struct Cache {
    site: Site,
    server: Running,
    token: String,
}

impl Cache {
    fn new() -> Self {
        let site = Site::new();
        // Nobody can read the cache without a token.
        site.configure_empty("access.networks = [\"192.0.2.0/24\"]\n");
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin"]);
        let cache = Self {
            site,
            server,
            token,
        };
        let store = support::sample_store();
        let url = cache.server.url();
        let tree = cache.site.dir().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "content").unwrap();
        for words in [
            &["push", "--store", &store, &url, &sample("fixed")][..],
            &["push", tree.to_str().unwrap(), &format!("{url}#app")],
        ] {
            output(samovar().args(words).env("SAMOVAR_TOKEN", &cache.token));
        }
        cache
    }
}

/// Each command that sends requests gets its login from each source, and runs with each switch that
/// changes what it prints. The login is right, or wrong, or the server cannot be reached.
#[test]
fn no_command_prints_the_login_that_it_sends() {
    let cache = Cache::new();
    let closed = ClosedPort::new();
    let right = Secret::new(&cache.token);
    let wrong = Secret::new("smv1_hunter2-that-is-wrong");
    let served = cache.server.address.to_string();
    let mut runs = Vec::new();
    for (secret, host, is_right) in [
        (&right, &served, true),
        (&wrong, &served, false),
        (&right, &closed.addr().to_string(), false),
    ] {
        for row in REQUESTS {
            for source in Source::ALL {
                for switch in switches(row.name) {
                    runs.push((row, secret, host.clone(), is_right, source, switch));
                }
            }
        }
    }
    all_at_once(&runs, |(row, secret, host, is_right, source, switch)| {
        let home = tempfile::tempdir().unwrap();
        if row.in_workspace {
            let mut open = at_home(home.path());
            open.args(["workspace", "open", &format!("http://{served}#app"), "ws"]);
            output(open.env("SAMOVAR_TOKEN", &cache.token));
            let states = home.path().join(".local/state/samovar/.samovar");
            let mut states = fs::read_dir(states).unwrap().map(|one| one.unwrap().path());
            let state = states.find(|one| one.is_dir()).unwrap().join("workspace");
            let text = fs::read_to_string(&state).unwrap();
            fs::write(&state, text.replace(&served, host)).unwrap();
        }
        let Some(mut command) = source.command(row, secret, host, home.path(), *switch) else {
            return;
        };
        let (text, code) = printed(secret, &mut command);
        if row.shows_use(*source, *switch) {
            match is_right {
                true => assert_eq!(code, row.code, "{command:?}: {text}"),
                false => assert_ne!(code, Some(0), "{command:?}: {text}"),
            }
        }
    });
}

/// The private cache of a user `ada`, with a signing key and a token.
struct Private {
    file: File,
    secrets: Vec<Secret>,
    token: String,
    secret_key: String,
}

impl Private {
    fn new(options: &str) -> Self {
        let file = File::new("");
        let dir = file.path.parent().unwrap();
        let password = "hunter2-of-a-user";
        let users = secret_file(dir, "users", &user("ada", password));
        let (line, token) = support::token("ci");
        let tokens = secret_file(dir, "tokens", &line);
        let (key, _) = key_pair(dir, "cache-1");
        file.write(&format!(
            "secret-key-files = {key:?}\n{options}\n\
             [access]\nusers-file = {users:?}\ntokens-file = {tokens:?}\n"
        ));
        let secret_key = fs::read_to_string(&key).unwrap();
        let secrets = vec![
            Secret::new(password),
            Secret::new(&token),
            Secret::of_key(&secret_key),
        ];
        Self {
            file,
            secrets,
            token,
            secret_key,
        }
    }

    fn assert_not_in(&self, text: &str) {
        for secret in &self.secrets {
            secret.assert_not_in(text, &"the server");
        }
    }
}

/// Results and errors state the URL without the login, and whose login was refused.
#[test]
fn urls_are_shown_without_their_login() {
    let private = Private::new("");
    let (_server, address) = support::serve(&private.file);
    let (password, path) = (&private.secrets[0], sample("fixed"));
    let shown = format!("http://{address}");
    let url = |user: &str| format!("http://{user}:{}@{address}", password.text);
    for command in ["query", "closure"] {
        let mut command = samovar_with(&[command, "--json", &url("ada"), &path]);
        let (text, _) = printed(password, &mut command);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["cache"], *shown, "{text}");
    }
    let config = private.file.path.to_str().unwrap();
    let doctor = |url: &str| {
        let conf = secret_file(
            private.file.path.parent().unwrap(),
            "nix.conf",
            &format!("substituters = {url}\n"),
        );
        let mut command = samovar_with(&[
            "doctor",
            "--url",
            url,
            "--config",
            config,
            "--client-config",
        ]);
        printed(password, command.arg(conf)).0
    };
    let text = doctor(&url("ada"));
    assert!(text.contains(&format!("{shown} serves ")), "{text}");
    assert!(text.contains(&format!("uses {shown}\n")), "{text}");
    let refused = "the login in the URL was refused";
    let text = doctor(&url("bob"));
    assert!(text.contains(refused), "{text}");
    for (url, part) in [(url("bob"), refused), (shown, "the request had no login")] {
        let (text, code) = printed(password, &mut samovar_with(&["query", &url, &path]));
        assert!(text.contains(part), "{text}");
        assert_eq!(code, Some(3));
    }
    // Every visitor would see the password.
    let mut check = samovar_with(&["serve", "--check-config", "--public-url", &url("ada")]);
    let (text, code) = printed(password, &mut check);
    assert!(text.contains("without a login"), "{text}");
    assert_eq!(code, Some(2));
}

fn samovar_with(words: &[&str]) -> std::process::Command {
    let mut command = samovar();
    command.args(words);
    command
}

/// Neither the logs of a server nor its admin pages contain credentials of clients or keys.
#[test]
fn a_server_logs_no_credentials() {
    for (verbose, format) in [
        (false, "combined"),
        (false, "json"),
        (true, "combined"),
        (true, "json"),
    ] {
        let private = Private::new("");
        let dir = private.file.path.parent().unwrap();
        let access = dir.join("access.log");
        let mut command = samovar();
        command.args([
            "serve",
            "--admin-listen",
            "127.0.0.1:0",
            "--log-access-format",
            format,
        ]);
        command.arg(format!("--log-verbose={verbose}"));
        command
            .arg("--config")
            .arg(&private.file.path)
            .arg("--log-access")
            .arg(&access);
        let (server, address) = Process::serving(&mut command);
        let address = address.to_string();
        let line = server.wait_for("metrics and status on");
        let (_, admin) = line.split_once("http://").unwrap();
        let password = &private.secrets[0];
        let texts = credentials_are_sent(&address, admin, password, &private.token);
        server.signal("HUP");
        server.wait_for("configuration was reloaded");
        server.signal("TERM");
        server.wait_for("events since the start");
        private.assert_not_in(&texts.join("\n"));
        private.assert_not_in(&server.lines().join("\n"));
        let mut log = String::new();
        testkit::eventually("all requests are logged", || {
            log = fs::read_to_string(&access).unwrap();
            log.lines().count() == 5
        });
        assert!(log.contains("http://***@"), "{log}");
        private.assert_not_in(&log);
    }
}

/// Sends five requests with credentials. Returns the pages of the admin listener.
fn credentials_are_sent(address: &str, admin: &str, password: &Secret, token: &str) -> Vec<String> {
    let text = &password.text;
    for (fields, expected) in [
        (
            format!("Authorization: Basic {}\r\n", password.basic()),
            200,
        ),
        (format!("Authorization: Bearer {token}\r\n"), 200),
        (format!("Authorization: Bearer {text}\r\n"), 401),
        (format!("Referer: http://ada:{text}@{address}/\r\n"), 401),
    ] {
        let status = support::status(address, "/nix-cache-info", &fields);
        assert_eq!(status, expected);
    }
    // The target is a whole URL, as for a proxy.
    let url = format!("http://ada:{text}@{address}/nix-cache-info");
    support::status(address, &url, "");
    ["/status", "/status.json", "/metrics"]
        .map(|page| support::ask(admin, page, ""))
        .into()
}

/// Files of secrets that are damaged, or were given for the wrong option.
#[test]
fn errors_about_files_of_secrets_do_not_quote_them() {
    let private = Private::new("");
    let dir = private.file.path.parent().unwrap();
    let (password, token) = (&private.secrets[0].text, &private.token);
    let key = private.secret_key.trim();
    let contents = [
        format!("{key}x\n"),
        key[..key.len() - 1].to_owned(),
        key.replace(':', " "),
        format!("ada:{password}\n"),
        format!("{password}\n"),
        format!("{token} more\n"),
        format!("machine 127.0.0.1 login ada password {password}\n"),
    ];
    let closed = ClosedPort::new();
    let url = format!("http://{}", closed.addr());
    let mut commands: Vec<Vec<String>> = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        let file = secret_file(dir, &at.to_string(), content);
        let file = file.to_str().unwrap();
        for option in [
            "secret-key-files",
            "access-users-file",
            "access-tokens-file",
            "tls-key",
            "config",
        ] {
            commands.push(
                [
                    "serve",
                    "--check-config",
                    &format!("--{option}={file}"),
                    "--tls-certificate",
                    file,
                ]
                .map(str::to_owned)
                .into(),
            );
        }
        for option in ["token-file", "netrc-file"] {
            commands.push(
                ["ref", "list", &url, &format!("--{option}"), file]
                    .map(str::to_owned)
                    .into(),
            );
        }
        commands.push(
            [
                "doctor",
                "--client-config",
                file,
                "--secret-key-files",
                file,
            ]
            .map(str::to_owned)
            .into(),
        );
        commands.push(["config", "import", file].map(str::to_owned).into());
    }
    all_at_once(&commands, |words| {
        let home = tempfile::tempdir().unwrap();
        let (text, code) = printed(&private.secrets[0], at_home(home.path()).args(words));
        private.assert_not_in(&text);
        assert_ne!(code, Some(0), "{words:?}: {text}");
    });
}

/// Each option and a variable of `nix-serve` is given a URL that contains a login.
#[test]
fn nix_serve_prints_no_login_and_no_key() {
    // Only `cargo test --workspace` builds it.
    let program = Path::new(env!("CARGO_BIN_EXE_samovar")).with_file_name("nix-serve");
    if !program.exists() {
        assert!(std::env::var_os("CI").is_none(), "nix-serve was not built");
        println!("NOT TESTED: nix-serve was not built");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (key, _) = key_pair(dir.path(), "cache-1");
    let secrets = [
        Secret::new("hunter2-of-a-url"),
        Secret::of_key(&fs::read_to_string(&key).unwrap()),
    ];
    let help = output(bare(program.to_str().unwrap()).arg("--help"));
    let url = format!("http://ada:{}@cache.example.org/log", secrets[0].text);
    // Without words, the URL is in a variable.
    let mut runs = vec![
        Vec::new(),
        vec![
            "--verbose".to_owned(),
            "--proxy".to_owned(),
            url.clone(),
            url.clone(),
        ],
    ];
    for format in ["quiet", "default", "real-ip", "json", "verbose", "debug"] {
        runs.push(vec![
            "--log-format".to_owned(),
            format.to_owned(),
            url.clone(),
        ]);
        runs.push(vec![
            "--log-format".to_owned(),
            format.to_owned(),
            "--nar-cache".to_owned(),
            url.clone(),
        ]);
    }
    let options = help
        .split([' ', ',', '\n', '.', ';', '"', '[', ']'])
        .filter(|word| word.len() > 2);
    // A process in the background would not end with the test.
    let options = options.filter(|word| word.starts_with("--") && *word != "--daemonize");
    let options: BTreeSet<&str> = options.collect();
    assert!(options.len() > 40, "{options:?}");
    for option in options {
        runs.push(vec![option.to_owned(), url.clone()]);
        runs.push(vec![format!("{option}={url}")]);
    }
    all_at_once(&runs, |words| {
        let home = tempfile::tempdir().unwrap();
        let mut command = bare(program.to_str().unwrap());
        command.args(["--listen", "127.0.0.1:0"]);
        match words.is_empty() {
            true => command.env("NIX_REMOTE", &url),
            false => command.args(["--store", &support::sample_store()]),
        };
        command
            .env("NIX_SECRET_KEY_FILE", &key)
            .args(words)
            .current_dir(home.path());
        command.env("HOME", home.path());
        let (text, _) = until(&mut command, &[" on http"], "TERM");
        let is_quoted = text.contains("cache.example.org");
        assert_eq!(text.contains("***@"), is_quoted, "{words:?}: {text}");
        for secret in &secrets {
            secret.assert_not_in(&text, words);
        }
    });
}
