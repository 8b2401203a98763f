//! Upstream caches can be set on the command line, in the environment and in the file.
//! `--check-config` shows them without their logins, and a reload reports their changes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{File, samovar, serve};

const KEY: &str = "test-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

/// Runs `--check-config`. Returns its exit code and what it has printed.
fn check(file: &File, words: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = samovar();
    command.args(["serve", "--check-config", "--config"]);
    command.arg(&file.path).args(words);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn upstreams_are_shown_without_their_logins() {
    let file = File::new(&format!(
        "[upstreams.team]\nurl = \"https://ada:hunter2@cache.example.org/team/\"\n\
         public-keys = [{KEY:?}]\n[upstreams.nixos]\nurl = \"http://cache.nixos.org\"\n"
    ));
    let words = [
        "--upstream",
        "https://bob:hunter2@cache.nixos.org",
        "--set",
        "upstreams.team.priority=10",
        "--upstream-budget=500ms",
    ];
    let variable = ("SAMOVAR_UPSTREAMS__TEAM__TIMEOUT", "2 s");
    let (code, text) = check(&file, &words, &[variable]);
    assert_eq!(code, Some(0), "{text}");
    let name = file.path.display();
    for line in [
        "upstream = [\"https://***@cache.nixos.org\"]  # --upstream".to_owned(),
        format!("upstreams.team.url = \"https://***@cache.example.org/team/\"  # {name}:4"),
        format!("upstreams.team.public-keys = [{KEY:?}]  # {name}:5"),
        "upstreams.team.priority = 10  # --set".to_owned(),
        "upstreams.team.timeout = \"2 s\"  # $SAMOVAR_UPSTREAMS__TEAM__TIMEOUT".to_owned(),
        "upstream-budget = \"500ms\"  # --upstream-budget".to_owned(),
        "#upstream-memory = \"64 MiB\"".to_owned(),
        "#upstream-down = \"miss\"".to_owned(),
        format!("upstreams.nixos.url = \"http://cache.nixos.org\"  # {name}:7"),
        "#upstreams.nixos.public-keys = \
         [\"cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=\"]"
            .to_owned(),
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    // A list on the command line is repeated, and replaces that of the file.
    let file = File::new("upstream = \"https://cache.nixos.org/missing\"\n");
    let twice = ["--upstream=https://cache.nixos.org"; 2];
    let (code, text) = check(&file, &twice, &[]);
    assert_eq!(code, Some(2), "{text}");
    let message = "--upstream: upstream names https://cache.nixos.org twice: remove one of them";
    assert!(text.contains(message), "{text}");
    assert_eq!(check(&file, &twice[..1], &[]).0, Some(0));
}

#[test]
fn invalid_upstreams_are_refused() {
    let file = File::new("[upstreams.team]\nurl = \"https://ada:hunter2@cache.example.org?x\"\n");
    let (code, text) = check(&file, &[], &[]);
    let expected = format!(
        "{}:4: upstreams.team.url must be a URL that begins with http:// or https://, without the \
         part from ? or # on, got a value that is not shown, because it may contain a login",
        file.path.display()
    );
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&expected), "{text}");
    let (_, text) = check(&file, &["--upstraem=https://cache.nixos.org"], &[]);
    assert!(text.contains("did you mean --upstream?"), "{text}");
}

#[test]
fn a_reload_reports_changed_upstreams() {
    let file = File::new("");
    let (server, _) = serve(&file);
    let nixos = "[upstreams.nixos]\nurl = \"https://cache.nixos.org\"\n";
    for (text, changed) in [
        (nixos.to_owned(), "; changed: upstreams.nixos (new)"),
        (
            format!("{nixos}priority = 1\n"),
            "; changed: upstreams.nixos.priority",
        ),
        (
            "upstream = \"https://cache.nixos.org\"\n".to_owned(),
            "; changed: upstream, upstreams.nixos (no longer asked)",
        ),
    ] {
        file.write(&text);
        server.signal("HUP");
        let lines = server.lines_to("the configuration was reloaded");
        let done = lines.last().unwrap();
        assert!(done.ends_with(changed), "{done}");
        let is_restart = |line: &String| line.contains("take effect after a restart");
        assert!(!lines.iter().any(is_restart), "{lines:?}");
    }
}
