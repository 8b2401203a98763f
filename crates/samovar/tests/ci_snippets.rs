//! The scripts for CI in `docs/book/ci.md` push the paths that their command builds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::Path;

use support::{bare, hash};
use support_uploads::Site;
use testkit::nix::{OwnStore, local};
use testkit::process::output;

/// A derivation that Nix builds without a program of the machine. `%` is replaced by its name.
const DERIVATION: &str = "derivation { name = \"%\"; system = \"builtin\"; derivations = \"\"; \
                          builder = \"builtin:buildenv\"; manifest = \"/none\"; }";

/// Returns the text of the block scalar that follows `key`, without its indentation.
fn block(text: &str, key: &str) -> String {
    let after = text.split_once(key).unwrap().1.trim_start_matches('\n');
    let indent = after.len() - after.trim_start().len();
    let lines = after.lines();
    let block = lines.take_while(|line| line.len() > indent && line[..indent].trim().is_empty());
    let lines: Vec<&str> = block.map(|line| &line[indent..]).collect();
    lines.join("\n")
}

/// Runs a script of a job, which must build a path with this name and push it.
fn pushes(script: &str, name: &str, run: &str) {
    let site = Site::new();
    let server = site.start();
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
        .env("SAMOVAR_TOKEN", site.token(&["--rights", "read,push"]))
        .env("RUN", run);
    let text = output(&mut bash);
    let suffix = format!("-{name}");
    let built = text.lines().find(|line| line.ends_with(&suffix)).unwrap();
    let narinfo = server.get(&format!("/{}.narinfo", hash(built)));
    assert_eq!(narinfo.status, 200, "{text}");
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
fn the_composite_action_pushes_what_its_command_builds() {
    pushes(&block(&page(), "      run: |"), "action", &build("action"));
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
    pushes(&script, "gitlab", "");
}
