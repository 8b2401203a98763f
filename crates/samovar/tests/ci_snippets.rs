//! The scripts for CI in `docs/book/ci.md` push the paths that their command builds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_oidc;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::Path;

use support::{bare, hash};
use support_oidc::{AUDIENCE, Issuer, Pair};
use support_uploads::Site;
use testkit::nix::{OwnStore, local};
use testkit::process::output;

/// A derivation that Nix builds without a program of the machine. `%` is replaced by its name.
const DERIVATION: &str = "derivation { name = \"%\"; system = \"builtin\"; derivations = \"\"; \
                          builder = \"builtin:buildenv\"; manifest = \"/none\"; }";

/// Names and values of environment variables.
type Variables = Vec<(&'static str, String)>;

/// Returns the text of the block scalar that follows `key`, without its indentation.
fn block(text: &str, key: &str) -> String {
    let after = text.split_once(key).unwrap().1.trim_start_matches('\n');
    let indent = after.len() - after.trim_start().len();
    let lines = after.lines();
    let block = lines.take_while(|line| line.len() > indent && line[..indent].trim().is_empty());
    let lines: Vec<&str> = block.map(|line| &line[indent..]).collect();
    lines.join("\n")
}

/// Runs a script of a job, which must build a path with this name and push it. The job has no
/// secret but the ID token of an issuer, in these variables.
fn pushes(script: &str, name: &str, run: &str, variables: impl Fn(&Issuer) -> Variables) {
    let pair = Pair::rsa("key");
    let issuer = Issuer::start(&[&pair]);
    let site = Site::new();
    let server = site.start();
    // The audience that the job requests by default is the URL of the server.
    let configuration = issuer.configuration("");
    site.configure_empty(&configuration.replace(AUDIENCE, &server.url()));
    server.process.signal("HUP");
    server.process.wait_for("the configuration was reloaded");
    let mut claims = issuer.claims("example/app", "main");
    claims["aud"] = server.url().into();
    issuer.set(|answers| answers.id_token = pair.token(&claims));
    let store = OwnStore::new();
    let home = tempfile::tempdir().unwrap();
    let settings = "build-users-group =\nsandbox = false\nsubstituters =\n";
    fs::write(home.path().join("nix.conf"), settings).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_samovar")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut bash = bare("bash");
    bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script])
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("HOME", home.path())
        .env("NIX_CONF_DIR", home.path())
        .env("NIX_REMOTE", local(store.root()))
        .env("CACHE", server.url())
        .env("PUBLIC_KEY", format!("cache-1:{}=", "A".repeat(43)))
        .env("RUN", run)
        .envs(variables(&issuer));
    let text = output(&mut bash);
    let suffix = format!("-{name}");
    let built = text.lines().find(|line| line.ends_with(&suffix)).unwrap();
    let narinfo = server.get(&format!("/{}.narinfo", hash(built)));
    assert_eq!(narinfo.status, 200, "{text}");
}

/// Returns the variables of a job of GitHub.
fn of_github(issuer: &Issuer) -> Variables {
    vec![
        (
            "ACTIONS_ID_TOKEN_REQUEST_URL",
            format!("{}/github?api-version=2.0", issuer.url),
        ),
        ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "request-token".to_owned()),
    ]
}

/// Returns the variables of a job of GitLab.
fn of_gitlab(issuer: &Issuer) -> Variables {
    vec![("SAMOVAR_ID_TOKEN", issuer.id_token())]
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/ci.md");
    fs::read_to_string(path).unwrap()
}

fn build(name: &str) -> String {
    let expression = DERIVATION.replace('%', name);
    format!("nix-build --no-out-link --expr '{expression}'")
}

#[test]
fn the_workflow_pushes_what_its_command_builds() {
    let page = page();
    let line = page
        .lines()
        .find(|line| line.contains("- run: samovar push"));
    let (_, script) = line.unwrap().split_once("- run: ").unwrap();
    let script = script
        .replace("https://cache.example.org", "\"$CACHE\"")
        .replace("nix build .#app", &build("workflow"));
    pushes(&script, "workflow", "", of_github);
}

#[test]
fn the_composite_action_pushes_what_its_command_builds() {
    let script = block(&page(), "      run: |");
    pushes(&script, "action", &build("action"), of_github);
}

#[test]
fn the_gitlab_job_pushes_what_its_command_builds() {
    let page = page();
    let job = page.split_once("  script:\n").unwrap().1;
    let exports = block(job, "    - |");
    let push = job.lines().find(|line| line.contains("samovar push"));
    let push = push.unwrap().trim_start().trim_start_matches("- ");
    let script = format!("{exports}\n{push}").replace("nix build .#app", &build("gitlab"));
    assert!(script.contains("nix-build"), "{script}");
    pushes(&script, "gitlab", "", of_gitlab);
}
