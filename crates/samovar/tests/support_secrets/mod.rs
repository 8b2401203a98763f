//! The commands of `samovar`, and how each is run with secrets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use samovar_server::config::OptionSpec;
use testkit::eventually;
use testkit::process::signal;

use crate::support::{samovar, sample, sample_store, secret_file};

/// A command that sends requests to a cache.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Arguments. `{url}` stands for the URL of the cache, and `{path}` for a path that it has.
    arguments: &'static [&'static str],
    /// Exit code if the login is right. Otherwise the command fails. `None`: the exit code does
    /// not depend on the login.
    pub(crate) code: Option<i32>,
    /// The command runs in a workspace with a change, whose state has the URL of the cache.
    pub(crate) in_workspace: bool,
}

impl Row {
    const fn new(name: &'static str, arguments: &'static [&'static str], code: i32) -> Self {
        Self {
            name,
            arguments,
            code: Some(code),
            in_workspace: false,
        }
    }

    const fn in_workspace(name: &'static str, arguments: &'static [&'static str]) -> Self {
        Self {
            in_workspace: true,
            ..Self::new(name, arguments, 0)
        }
    }

    const fn with_any_code(self) -> Self {
        Self { code: None, ..self }
    }

    /// Returns whether the exit code shows that the command has used its login.
    pub(crate) fn shows_use(&self, source: Source, switch: Option<&str>) -> bool {
        let takes_tokens = match self.name {
            "use" => has(self.name, "token-file") && source != Source::Url,
            name => has(name, "token-file") || source == Source::Url,
        };
        self.code.is_some() && takes_tokens && switch != Some("dry-run")
    }
}

/// The commands that send requests, in all forms that differ in their requests.
pub(crate) const REQUESTS: &[Row] = &[
    Row::new("use", &["--print", "--yes", "{url}"], 0),
    Row::new("closure", &["{url}", "{path}"], 0),
    Row::new("query", &["{url}", "{path}"], 0),
    Row::new("prefetch", &["{url}", "{path}"], 0),
    Row::new("push", &["--store", "{store}", "{url}", "{path}"], 0),
    Row::new("push", &["--force", "tree", "{url}#app"], 0),
    Row::new("pull", &["{url}#app", "new"], 0),
    Row::new("pull", &["{url}#{path}", "new"], 0),
    // The directory is refused before or after the requests.
    Row::new("mount", &["{url}#app", "tree"], 0).with_any_code(),
    Row::new("mount", &["--store", "{url}", "tree"], 0).with_any_code(),
    Row::new(
        "doctor",
        &[
            "--url",
            "{url}",
            "--store",
            "{store}",
            "--listen",
            "127.0.0.1:0",
        ],
        0,
    )
    .with_any_code(),
    Row::new("status", &["{url}"], 0).with_any_code(),
    Row::new("profile", &["tree", "--server", "{url}"], 0),
    Row::new("ref list", &["{url}"], 0),
    Row::new("ref log", &["{url}#app"], 0),
    Row::new("ref pin", &["{url}#app"], 0),
    Row::new("ref unpin", &["{url}#app@1"], 0).with_any_code(),
    Row::new("ref remove", &["{url}#other"], 1),
    Row::new("workspace open", &["{url}#app", "ws"], 0),
    Row::new("workspace run", &["{url}#app", "--", "true"], 0),
    Row::in_workspace("workspace status", &[]).with_any_code(),
    Row::in_workspace("workspace push", &["--force"]),
    Row::in_workspace("workspace pull", &[]),
    Row::in_workspace("workspace log", &[]),
    Row::in_workspace("workspace restore", &["--force", "@1"]).with_any_code(),
    Row::in_workspace("workspace discard", &["--yes"]).with_any_code(),
    Row::in_workspace("workspace close", &["--discard"]).with_any_code(),
    Row::in_workspace("workspace repair", &[]).with_any_code(),
    Row::in_workspace("workspace auto", &["--idle", "10ms"]).with_any_code(),
    Row::new(
        "import",
        &["--storage", "storage", "--from", "{url}", "{path}"],
        0,
    ),
];

/// The commands that send no request.
pub(crate) const LOCAL: &[&str] = &[
    "nodes",
    "storage copy",
    "serve",
    "hook",
    "config import",
    "password",
    "token",
    "token create",
    "token line",
    "token list",
    "token revoke",
    "pin add",
    "pin list",
    "pin remove",
    "workspace diff",
    "workspace list",
    "workspace run-guard",
    "cache list",
    "cache delete",
    "gc",
    "fsck",
    "export",
    "completions",
    "man",
];

/// Returns the value for HTTP Basic of the user `ada` with this password.
fn basic_of(password: &str) -> String {
    STANDARD.encode(format!("ada:{password}"))
}

/// A text that no output may contain.
#[derive(Debug)]
pub(crate) struct Secret {
    pub(crate) text: String,
    /// The text, and a part of it encoded for HTTP Basic.
    forms: Vec<String>,
}

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        let basic = basic_of(text);
        // The last characters depend on what follows.
        let basic = &basic[..basic.len() - 4];
        Self {
            text: text.to_owned(),
            forms: vec![text.to_owned(), basic.to_owned()],
        }
    }

    /// Returns the secret part of a signing key, which is followed by the public key.
    pub(crate) fn of_key(key: &str) -> Self {
        let (_, base64) = key.split_once(':').unwrap();
        // 40 characters encode 30 of the 32 secret bytes.
        Self::new(&base64[..40])
    }

    /// Returns the value for HTTP Basic of the user `ada` with this password.
    pub(crate) fn basic(&self) -> String {
        basic_of(&self.text)
    }

    #[track_caller]
    pub(crate) fn assert_not_in(&self, text: &str, whose: &dyn Debug) {
        for form in &self.forms {
            assert!(!text.contains(form), "{whose:?} printed {form}: {text}");
        }
    }
}

/// Returns all commands that have no subcommand which must be given, by their words.
pub(crate) fn leaves() -> BTreeMap<String, clap::Command> {
    fn add(name: &str, command: &clap::Command, all: &mut BTreeMap<String, clap::Command>) {
        if !command.is_subcommand_required_set() {
            all.insert(name.to_owned(), command.clone());
        }
        for below in command.get_subcommands() {
            add(format!("{name} {}", below.get_name()).trim(), below, all);
        }
    }
    let mut all = BTreeMap::new();
    add("", &samovar::cli::command(), &mut all);
    all
}

/// Returns whether a command has an argument.
pub(crate) fn has(command: &str, argument: &str) -> bool {
    let command = &leaves()[command];
    command.get_arguments().any(|arg| arg.get_id() == argument)
}

/// Returns command lines that give one of these values to one option or argument each.
pub(crate) fn with_each_argument(
    name: &str,
    command: &clap::Command,
    values: &[String],
) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for arg in command
        .get_arguments()
        .filter(|arg| arg.get_action().takes_values())
    {
        let is_option = OptionSpec::find(arg.get_id().as_str()).is_some();
        // All commands that have the options of the configuration read them in the same way.
        if is_option && !matches!(name, "serve" | "doctor") {
            continue;
        }
        // The options of the configuration are many, and are checked by the same code.
        let count = if is_option { 2 } else { values.len() };
        for value in &values[..count] {
            let mut words: Vec<String> = name.split(' ').map(str::to_owned).collect();
            words.extend(match name {
                "serve" => vec!["--check-config".to_owned()],
                "use" => vec!["--print".to_owned()],
                _ => Vec::new(),
            });
            if let Some(long) = arg.get_long() {
                words.push(format!("--{long}={value}"));
            }
            for other in command.get_arguments() {
                let is_this = other.get_id() == arg.get_id();
                if other.is_positional() && (is_this || other.is_required_set()) {
                    words.push(value.clone());
                } else if other.is_required_set() && !is_this {
                    words.push(format!("--{}={value}", other.get_long().unwrap()));
                }
            }
            lines.push(words);
        }
    }
    lines
}

/// Calls a function with each item, with several at the same time: commands wait for servers.
pub(crate) fn all_at_once<T: Sync>(items: &[T], call: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    call(item);
                }
            });
        }
    });
}

/// Returns `samovar` in this directory, which also has all its files.
pub(crate) fn at_home(home: &Path) -> Command {
    let mut command = samovar();
    command.current_dir(home).env("HOME", home);
    command.env("NIX_CONF_DIR", home.join("conf"));
    command.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1");
    command
}

/// Runs a command. Asserts that its outputs do not contain the secret. Returns both outputs as one
/// text, and the exit code, which is `None` if the command was killed because it would have
/// tried for a minute to reach a server, or would have run until a signal.
#[track_caller]
pub(crate) fn printed(secret: &Secret, command: &mut Command) -> (String, Option<i32>) {
    let parts: &[&str] = match command.get_args().any(|word| word == "auto") {
        true => &["trying", " sent in "],
        false => &["trying for a minute"],
    };
    let (text, code) = until(command, parts, "KILL");
    secret.assert_not_in(&text, command);
    (text, code)
}

/// Runs a command, and sends it the signal `end` once it has printed one of these texts. Returns
/// both outputs as one text, and the exit code, which is `None` after a signal.
pub(crate) fn until(command: &mut Command, parts: &[&str], end: &str) -> (String, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output");
    let file = File::create(&path).unwrap();
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().unwrap();
    let text = || String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    let mut is_terminated = false;
    let mut status = None;
    eventually(&format!("{command:?} ends"), || {
        status = child.try_wait().unwrap();
        if status.is_none() && !is_terminated && parts.iter().any(|part| text().contains(part)) {
            signal(child.id(), end);
            is_terminated = true;
        }
        status.is_some()
    });
    (text(), status.unwrap().code())
}

/// How a command gets its login.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Source {
    Url,
    Variable,
    TokenFile,
    NetrcFile,
    /// The netrc file of Nix.
    Netrc,
}

impl Source {
    pub(crate) const ALL: [Self; 5] = [
        Self::Url,
        Self::Variable,
        Self::TokenFile,
        Self::NetrcFile,
        Self::Netrc,
    ];

    /// Returns the command of a row. Returns `None` if it cannot have its login from this source.
    pub(crate) fn command(
        self,
        row: &Row,
        secret: &Secret,
        host: &str,
        home: &Path,
        switch: Option<&str>,
    ) -> Option<Command> {
        let file = match self {
            Self::TokenFile => Some("token-file"),
            Self::NetrcFile => Some("netrc-file"),
            Self::Url | Self::Variable | Self::Netrc => None,
        };
        if file.is_some_and(|id| !has(row.name, id)) || row.in_workspace && self == Self::Url {
            return None;
        }
        let url = match self {
            Self::Url => format!("http://ada:{}@{host}", secret.text),
            _ => format!("http://{host}"),
        };
        let netrc = format!("machine 127.0.0.1 login ada password {}\n", secret.text);
        let mut command = at_home(home);
        command
            .args(row.name.split(' '))
            .args(switch.map(|id| format!("--{id}")));
        match self {
            Self::Url => {}
            Self::Variable => {
                command.env("SAMOVAR_TOKEN", &secret.text);
            }
            Self::TokenFile => {
                let file = secret_file(home, "token", &secret.text);
                command.arg("--token-file").arg(file);
            }
            Self::NetrcFile => {
                let file = secret_file(home, "netrc", &netrc);
                command.arg("--netrc-file").arg(file);
            }
            Self::Netrc => {
                fs::create_dir(home.join("conf")).unwrap();
                secret_file(&home.join("conf"), "netrc", &netrc);
            }
        }
        fs::create_dir(home.join("tree")).unwrap();
        fs::write(home.join("tree/file"), "content").unwrap();
        if row.in_workspace {
            fs::write(home.join("ws/new"), "content").unwrap();
            command.current_dir(home.join("ws"));
        }
        for argument in row.arguments {
            let argument = argument
                .replace("{url}", &url)
                .replace("{path}", &sample("fixed"));
            command.arg(argument.replace("{store}", &sample_store()));
        }
        Some(command)
    }
}

/// The switches of a command that change how much it prints.
pub(crate) fn switches(name: &str) -> Vec<Option<&'static str>> {
    let all = ["json", "verbose", "quiet", "dry-run"];
    let switches = all.into_iter().filter(|id| has(name, id)).map(Some);
    switches.chain([None]).collect()
}
