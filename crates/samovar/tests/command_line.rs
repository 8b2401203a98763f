//! An invalid command line or configuration is reported in one line with exit code 2. The line
//! names the help of the command.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use support::{File, Server, ask, samovar, sample_store, serve};

#[track_caller]
fn refused(words: &[&str], part: &str) {
    refused_by(samovar().args(words), part);
}

#[track_caller]
fn refused_by(command: &mut std::process::Command, part: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{command:?}: {text}");
    assert!(text.contains(part), "{command:?}: {text}");
    assert!(output.stdout.is_empty(), "{command:?}");
}

/// Returns the names of environment variables in the source files of a directory.
fn variables(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.append(&mut variables(&path));
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let literals = text.split('"').filter(|text| {
            text.len() > "SAMOVAR_".len()
                && text.starts_with("SAMOVAR_")
                && text.bytes().all(|c| c.is_ascii_uppercase() || c == b'_')
        });
        names.extend(literals.map(str::to_owned));
    }
    names
}

/// Variables of clients may be set for a whole login, in which an operator starts a server.
#[test]
fn no_variable_of_a_client_stops_the_server() {
    let config = File::new("");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = ["samovar", "samovar-client", "samovar-mount"].map(|name| crates.join(name));
    let names = crates.iter().flat_map(|one| variables(&one.join("src")));
    let names: BTreeSet<String> = names.collect();
    assert!(names.contains("SAMOVAR_PLAIN_HTTP"), "{names:?}");
    for name in names.iter().filter(|name| *name != "SAMOVAR_CONFIG") {
        let mut command = samovar();
        command.args(["serve", "--check-config", "--config"]);
        testkit::process::output(command.arg(&config.path).env(name, "x"));
    }
}

#[test]
fn invalid_arguments_have_exit_code_2() {
    let (_server, address) = serve(&File::new(""));
    let url = format!("http://{address}");
    for (words, part) in [
        (&["query", "foo"][..], "[PATH]"),
        (&["query", "foo", "foo"], "does not begin with http://"),
        (
            &["query", &url, "foo"],
            "\"foo\" is not a path in /nix/store",
        ),
        (&["closure", &address, "foo"], "does not begin with http://"),
        (&["status", &address], "does not begin with http://"),
        (
            &["doctor", "--url", &address],
            "does not begin with http://",
        ),
        (&["use", &address], "does not begin with http://"),
        (&["serve", "--set", "priority"], "is not NAME=VALUE"),
        (&["serve", "--priority", "high"], "must be a whole number"),
        (&["gc"], "no storage is configured"),
        (&["token", "list"], "no storage is configured"),
        (&["pin", "list"], "no storage is configured"),
        (&["token", "lst"], "\"lst\"; did you mean list? For a token"),
        (
            &["token", "revok", "--storage", "st", "--name", "a"],
            "unknown command \"revok\"; did you mean revoke?",
        ),
        (
            &["push", &url, "x", "--token", "y"],
            "unknown option --token; did you mean --token-file?",
        ),
        (&["push", &url], "--watch>; see samovar push --help"),
        (
            &["serve", "--priority", "-1"],
            "--priority: priority must be a whole number from 0 to",
        ),
        (
            &["serve", "--set", "policy.allow=[{ roots = [\"nope\"] }]"],
            "policy.allow must be a list of tables in which the roots are absolute paths, got",
        ),
    ] {
        refused(words, part);
    }
}

/// A repeated option with one value is refused: the values of the first one would be lost.
#[test]
fn repeated_options_are_refused() {
    let (first, second) = (File::new(""), File::new(""));
    let [first, second] = [&first, &second].map(|file| file.path.to_str().unwrap());
    let twice = "cannot be used multiple times";
    for command in ["serve", "doctor", "gc"] {
        refused(&[command, "--config", first, "--config", second], twice);
    }
    refused(&["serve", "--store", "/a", "--store", "/b"], twice);
    // Lists are added up.
    let words = ["serve", "--check-config", "--config", first];
    let mut check = samovar();
    check.args(words).args(["--listen", ":1", "--listen", ":2"]);
    let output = check.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("listen = [\":1\", \":2\"]"), "{text}");
}

/// Invalid values in a file are reported with their place.
#[test]
fn invalid_entries_of_lists_name_their_line() {
    let file = File::new("");
    for (option, value) in [
        ("access.networks", "10.0.0.0/99"),
        ("access.trusted-proxies", "proxy.example.org"),
        ("access.certificates.fingerprints", "12:34"),
    ] {
        file.write(&format!("{option} = [{value:?}]\n"));
        // The file begins with two lines of its own.
        let part = format!("{}:3: {option} must be a list of ", file.path.display());
        let path = file.path.to_str().unwrap();
        for words in [
            &["serve", "--config", path][..],
            &["serve", "--check-config", "--config", path],
            &["doctor", "--config", path],
        ] {
            refused(words, &part);
        }
    }
}

#[test]
fn errors_name_the_help_of_the_command() {
    for (words, help) in [
        (&["--nonsense"][..], "; see samovar --help"),
        (&["serve", "--nonsense"], "; see samovar serve --help"),
        (
            &["token", "create", "--nonsense"],
            "; see samovar token create --help",
        ),
    ] {
        refused(words, help);
    }
    let help = |words: &[&str]| {
        let output = samovar().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(help(&["help"]), help(&["--help"]));
    assert_eq!(help(&["help", "serve"]), help(&["serve", "--help"]));
    assert_eq!(
        help(&["help", "token", "create"]),
        help(&["token", "create", "--help"])
    );
}

/// `samovar serve` accepts the names of nix-serve.
#[test]
fn options_of_nix_serve_are_aliases() {
    let words = [
        "--read-timeout",
        "5s",
        "--nar-cache-size",
        "off",
        "--path=/x",
    ];
    let store = sample_store();
    let words = [&["serve", "--check-config", "--store", &store], &words[..]].concat();
    let output = samovar().args(words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "connections.head-time = \"5s\"  # --connections-head-time",
        "nar-cache.size = \"off\"  # --nar-cache-size",
        "prefix = \"/x\"  # --prefix",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
    refused(
        &["serve", "--ssl-cert", "/c"],
        "tls.certificate requires tls.key",
    );
}

/// Calls `f` with the words of each command and subcommand.
fn for_each_command(command: &clap::Command, words: &[String], f: &mut impl FnMut(&[String])) {
    f(words);
    for below in command.get_subcommands() {
        let words = [words, &[below.get_name().to_owned()]].concat();
        for_each_command(below, &words, f);
    }
}

#[test]
fn every_help_fits_80_columns() {
    for_each_command(&samovar::cli::command(), &[], &mut |words| {
        let output = samovar().args(words).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.is_empty(), "{words:?}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{words:?}: {line}");
        }
    });
}

/// The options of the configuration are grouped in the help of `serve`, and left out of that of
/// other commands.
#[test]
fn options_of_the_configuration_are_grouped() {
    let help = |command: &str| {
        let output = samovar().args([command, "--help"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let serve = help("serve");
    for heading in ["Listening:", "Store:", "Access:", "Logs and monitoring:"] {
        assert!(serve.contains(&format!("\n{heading}\n")), "{heading}");
    }
    let doctor = help("doctor");
    assert!(doctor.contains("--client-config") && !doctor.contains("--tls-certificate"));
    assert!(doctor.lines().count() < 50, "{doctor}");
}

#[test]
fn typos_have_a_hint() {
    for (words, hint) in [
        (
            &["srve"][..],
            "unknown command \"srve\"; did you mean serve?",
        ),
        (&["dcotor"], "did you mean doctor?"),
        (&["hlep"], "did you mean help?"),
        (&["pin", "lits"], "did you mean list?"),
        (
            &["serve", "--lsiten", ":0"],
            "unknown option --lsiten; did you mean --listen?",
        ),
        (&["serve", "--usre", "x"], "did you mean --user?"),
        (&["serve", "--uer", "x"], "did you mean --user?"),
        (
            &["query", "--josn", "http://a", "b"],
            "did you mean --json?",
        ),
        (&["status", "--sbool", "x"], "did you mean --spool?"),
        (&["serve", "--ssl-ceert", "x"], "did you mean --ssl-cert?"),
        // Options of nix-serve that have another form.
        (
            &["serve", "--port", "80"],
            "unknown option --port; did you mean --listen?",
        ),
        (
            &["serve", "--timeout", "9"],
            "did you mean --connections-stall-time?",
        ),
    ] {
        refused(words, hint);
    }
    refused(
        &["frobnicate"],
        "unknown command \"frobnicate\"; see samovar --help",
    );
    let file = File::new("");
    for (text, hint) in [
        ("[tsl]", "unknown option `tsl`; did you mean `tls`?"),
        ("[cachse.a]\npriority = 1", "did you mean `caches`?"),
        ("[cahces.a]\npriority = 1", "did you mean `caches`?"),
        (
            "[caches.a.singing]\nsign = \"all\"",
            "did you mean `signing`?",
        ),
        ("[connection]\nmax = 5", "did you mean `connections`?"),
        ("ssl-cert = \"/c\"", "did you mean `tls.certificate`?"),
        ("port = 80", "did you mean `listen`?"),
    ] {
        file.write(text);
        refused(&["serve", "--config", file.path.to_str().unwrap()], hint);
    }
}

/// An option of the command line and a variable can turn off the admin listener.
#[test]
fn the_admin_listener_can_be_turned_off() {
    for words in [
        &["--admin-listen", ""][..],
        &["--set", "admin.listen=[]"],
        &["--set", "admin.listen="],
    ] {
        let mut command = samovar();
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &sample_store(),
        ]);
        let server = Server::spawn(command.args(words));
        let address = server.wait_for_address().to_string();
        assert!(ask(&address, "/nix-cache-info", "").starts_with("200"));
        server.signal("TERM");
        server.wait_for("events since the start");
        assert_eq!(server.count("metrics and status on"), 0);
        assert_eq!(server.count("there are no metrics"), 0);
    }
}

/// An unset variable must not turn signing off.
#[test]
fn empty_lists_of_key_files_are_refused() {
    let expected = "secret-key-files must be a list of texts";
    refused(&["serve", "--secret-key-files", ""], expected);
    refused(&["serve", "--set", "secret-key-files="], expected);
    let mut command = samovar();
    command.arg("serve").env("SAMOVAR_SECRET_KEY_FILES", "");
    refused_by(&mut command, expected);
    // Only a file can state that there is no key.
    let file = File::new("secret-key-files = []\n");
    assert!(fs::metadata(&file.path).is_ok());
    drop(serve(&file));
}
