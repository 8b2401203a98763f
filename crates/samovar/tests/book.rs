//! The commands in the book work as printed, and every block is run or states why it is not.
//!
//! | part of a page | what the tests do |
//! |---|---|
//! | block `console` | run the commands after `$ ` and `# `, and compare the outputs |
//! | block `sh` | run the whole block |
//! | block `toml` | check it as a configuration file |
//! | other blocks | nothing: they are no commands |
//! | `<!-- run: COMMANDS -->` | run these commands, which readers do not see |
//! | `<!-- file: PATH -->` | write the block that follows to this file |
//! | `<!-- not run: REASON -->` | leave out the block that follows |
//!
//! Each page is one shell session in a root file system of its own. In an output of the book, `…`
//! stands for any text, and words with digits may differ.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it has not tested"
)]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::bare;
use testkit::nix::sample_root;
use testkit::process::{finish, output};

/// Languages of blocks that contain no commands.
const PLAIN: [&str; 6] = ["ini", "nginx", "nix", "text", "vcl", "yaml"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).unwrap()
}

/// A part of a page that concerns these tests.
#[derive(Debug)]
struct Part {
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Debug, PartialEq)]
enum Kind {
    Hidden,
    Block {
        language: String,
        is_run: bool,
        /// The file to which the block is written.
        file: Option<String>,
    },
}

/// Returns the parts of a page in order.
fn parts(page: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut is_run, mut file) = (true, None);
    let source = read(page);
    let mut lines = source.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let at = line.trim_start();
        let indent = line.len() - at.len();
        let place = format!("{page}:{}", index + 1);
        if let Some(text) = at.strip_prefix("<!-- ") {
            let mut text = text.to_owned();
            while !text.ends_with("-->") {
                text = text + "\n" + lines.next().expect("a comment ends").1;
            }
            let text = text.trim_end_matches("-->").trim().to_owned();
            if let Some(reason) = text.strip_prefix("not run: ") {
                assert!(reason.len() > 10, "{place}: a reason is missing");
                is_run = false;
            } else if let Some(text) = text.strip_prefix("run: ") {
                parts.push(Part {
                    line: index + 1,
                    kind: Kind::Hidden,
                    text: text.to_owned(),
                });
            } else if let Some(path) = text.strip_prefix("file: ") {
                file = Some(path.to_owned());
            } else {
                panic!("{place}: a comment must begin with `run: `, `file: ` or `not run: `");
            }
        } else if let Some(language) = at.strip_prefix("```") {
            let inside = lines.by_ref().map(|(_, line)| line);
            let inside = inside.take_while(|line| line.trim() != "```");
            let inside: Vec<String> = inside
                .map(|line| line.get(indent..).unwrap_or_default().to_owned())
                .collect();
            let language = language.to_owned();
            parts.push(Part {
                line: index + 1,
                kind: Kind::Block {
                    language,
                    is_run,
                    file: file.take(),
                },
                text: inside.join("\n"),
            });
            is_run = true;
        }
    }
    parts
}

/// A command of a page and the output that the page shows.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// Splits a block into commands and their outputs.
fn steps(part: &Part) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_open = false;
    let prompt = &part.text[..2];
    assert!(
        matches!(prompt, "$ " | "# "),
        "a console block begins with a prompt: {part:?}"
    );
    for (index, line) in part.text.lines().enumerate() {
        let command = line.strip_prefix(prompt);
        if is_open {
            let step = steps.last_mut().unwrap();
            step.command += "\n";
            step.command += line;
        } else if let Some(command) = command {
            steps.push(Step {
                line: part.line + 1 + index,
                command: command.to_owned(),
                output: Vec::new(),
            });
        } else {
            let step = steps.last_mut().unwrap();
            step.output.push(line.to_owned());
            continue;
        }
        // A command goes on after a backslash, a pipe, and inside of quotation marks.
        let command = &steps.last().unwrap().command;
        is_open = command.ends_with(['\\', '|']) || command.matches('\'').count() % 2 == 1;
    }
    steps
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Units of sizes and times.
const UNITS: [&str; 10] = [
    "B", "KiB", "MiB", "GiB", "B/s", "KiB/s", "us", "ms", "s", "min",
];

/// Returns the words of a line. Words with a digit, and units after them, become one `#`.
fn shape(line: &str) -> Vec<&str> {
    let words = line.split_whitespace().map(|word| {
        let has_digit = word.contains(|letter: char| letter.is_ascii_digit());
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', ')']));
        if has_digit || is_unit { "#" } else { word }
    });
    let mut shape: Vec<&str> = words.collect();
    shape.dedup_by(|one, other| one == other && *one == "#");
    shape
}

/// Returns whether a line of an output is like a line of the book.
fn is_like(line: &str, expected: &str) -> bool {
    let (line, expected) = (shape(line), shape(expected));
    let Some(at) = expected.iter().position(|word| word.contains('…')) else {
        return line == expected;
    };
    let after = &expected[at + 1..];
    line.len() >= at + after.len()
        && line[..at] == expected[..at]
        && (after.contains(&"…")
            || after.iter().any(|word| word.contains('…'))
            || line.ends_with(after))
}

/// Compares outputs with those in the book: their lines appear in this order.
fn compare(page: &str, step: &Step, output: &str) {
    let mut lines = output.lines();
    for expected in step.output.iter().filter(|line| !line.trim().is_empty()) {
        if expected.trim() == "…" {
            continue;
        }
        assert!(
            lines.any(|line| is_like(line, expected)),
            "{page}:{}: `{}` does not print {expected:?}, but\n{output}",
            step.line,
            step.command
        );
    }
}

/// Runs a page over the sample store.
fn run(page: &str) {
    run_over(&sample_root(), page);
}

/// Runs a page over this store, which contains what the sample store contains.
fn run_over(store: &Path, page: &str) {
    let mut script = read("crates/samovar/tests/book/functions.sh");
    let mut expected = Vec::new();
    for part in parts(page) {
        let mut call = |function: &str, line: usize, text: &str| {
            writeln!(script, "{function} {line} {}", quoted(text)).unwrap();
        };
        match &part.kind {
            Kind::Hidden => call("hidden", part.line, &part.text),
            Kind::Block { is_run: false, .. } => {}
            Kind::Block {
                file: Some(path),
                language,
                ..
            } => {
                call(&format!("file {path}"), part.line, &part.text);
                if language == "toml" {
                    call("config", part.line, &part.text);
                }
            }
            Kind::Block { language, .. } => match &**language {
                "console" => {
                    for step in steps(&part) {
                        call("step", step.line, &step.command);
                        expected.push(step);
                    }
                }
                "sh" => call("step", part.line, &part.text),
                "toml" => call("config", part.line, &part.text),
                _ => {}
            },
        }
    }
    let Some((is_done, output)) = in_sandbox(&script, store) else {
        return;
    };
    if let Some((_, reason)) = output.split_once("\u{1}skipped: ") {
        eprintln!("{page} is not tested from here on: {reason}");
        return;
    }
    let last = output.rsplit('\u{1}').next().unwrap();
    assert!(is_done, "{page}, {last}");
    for step in &expected {
        let start = format!("\u{1}{}\n", step.line);
        let (_, after) = output.split_once(&start).unwrap();
        let output = after.split('\u{1}').next().unwrap();
        if output == "\u{2}" {
            eprintln!("{page}:{} is not tested: a program is missing", step.line);
        } else {
            compare(page, step, output);
        }
    }
}

/// Returns `unshare` with the namespaces of a page, which runs a script of bash.
fn namespaces(script: &str) -> Command {
    let mut command = bare("unshare");
    for namespace in ["user", "map-root-user", "mount", "net", "pid", "uts"] {
        command.arg(format!("--{namespace}"));
    }
    command.args(["--fork", "--kill-child", "bash", "-c", script, "bash"]);
    command
}

/// Runs a script over a store. Returns whether it succeeds, and its output; `None` if this machine
/// has no namespaces or overlays for users.
fn in_sandbox(script: &str, store: &Path) -> Option<(bool, String)> {
    let dir = tempfile::tempdir().unwrap();
    let mut probe = namespaces(
        "mount -t tmpfs tmpfs \"$1\" && cd \"$1\" && mkdir lower proc upper work tree && \
         mount -t proc proc proc && mount -t overlay overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work tree",
    );
    let probed = finish(probe.arg(dir.path()));
    if !probed.status.success() {
        let reason = String::from_utf8_lossy(&probed.stderr);
        eprintln!("skipped: this machine has no namespaces or overlays for users: {reason}");
        return None;
    }
    let (file, root) = (dir.path().join("page.sh"), dir.path().join("root"));
    fs::write(&file, script).unwrap();
    fs::create_dir(&root).unwrap();
    let mut command = namespaces(&read("crates/samovar/tests/book/sandbox.sh"));
    command.arg(&root).arg(store);
    command.arg(env!("CARGO_BIN_EXE_samovar")).arg(&file);
    let done = finish(&mut command);
    let errors = String::from_utf8_lossy(&done.stderr);
    let output = String::from_utf8_lossy(&done.stdout) + errors;
    Some((done.status.success(), output.into_owned()))
}

/// Defines a test for each page, and the list of pages.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                run($page);
            }
        )*
    };
}

pages! {
    ci: "docs/book/ci.md",
    client_certificates: "docs/book/client-certificates.md",
    keys: "docs/book/keys.md",
    migrating: "docs/book/migrating.md",
    monitoring: "docs/book/monitoring.md",
    maintenance: "docs/book/maintenance.md",
    mount: "docs/book/mount.md",
    moving: "docs/book/moving.md",
    nginx: "docs/book/nginx.md",
    nodes: "docs/book/nodes.md",
    private: "docs/book/private.md",
    push: "docs/book/push.md",
    readme: "README.md",
    start: "docs/book/start.md",
    small_files_recipes: "docs/book/small-files-recipes.md",
    snapshots: "docs/book/snapshots.md",
    tls: "docs/book/tls.md",
    troubleshooting: "docs/book/troubleshooting.md",
    upgrading: "docs/book/upgrading.md",
    uploads: "docs/book/uploads.md",
    upstreams: "docs/book/upstreams.md",
    web_interface: "docs/book/web-interface.md",
    workspace_server: "docs/book/workspace-server.md",
    workspaces: "docs/book/workspaces.md",
}

/// Nix run by root gives a store to the group of its build users, where the machine has one. The
/// group is not mapped in the namespaces of a page.
#[test]
fn pages_run_over_a_store_of_build_users() {
    /// The group `nogroup`, which every Linux system has.
    const GROUP: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give a store to a group of others");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("sample");
    output(bare("cp").arg("-a").arg(sample_root()).arg(&store));
    let files = store.join("nix/store");
    chown(&files, None, Some(GROUP)).unwrap();
    fs::set_permissions(&files, fs::Permissions::from_mode(0o1775)).unwrap();
    for page in ["docs/book/push.md", "docs/book/snapshots.md"] {
        run_over(&store, page);
    }
}

#[test]
fn every_block_is_run_or_has_a_reason() {
    let mut pages: Vec<String> = fs::read_dir(repository().join("docs/book"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/book/{name}"))
        .collect();
    pages.push("README.md".to_owned());
    for page in pages {
        let mut has_commands = false;
        for part in parts(&page) {
            let place = format!("{page}:{}", part.line);
            let Kind::Block {
                language, is_run, ..
            } = part.kind
            else {
                continue;
            };
            match &*language {
                "console" | "sh" | "toml" => has_commands |= is_run,
                plain if PLAIN.contains(&plain) => assert!(
                    !part.text.lines().any(|line| line.starts_with("$ ")),
                    "{place}: a block with commands must have the language `console`"
                ),
                other => panic!("{place}: the language {other:?} of a block is not known"),
            }
        }
        assert!(
            !has_commands || PAGES.contains(&&*page),
            "{page} has commands that no test runs"
        );
    }
}

/// The commands of systemctl and the lines of units in the page on installation are those that
/// `contrib/systemd/try.sh` runs under a real systemd.
#[test]
fn the_commands_for_the_package_are_tried() {
    let (page, tried) = (read("docs/book/install.md"), read("contrib/systemd/try.sh"));
    let pieces = page.lines().flat_map(|line| line.split('`'));
    let mut count = 0;
    for piece in pieces.map(|piece| piece.trim_start_matches("$ sudo ")) {
        let is_command = piece.starts_with("systemctl ") && piece.contains("samovar");
        let is_setting = piece.starts_with("LoadCredential=") || piece.starts_with("ListenStream=");
        let expected = match piece.strip_prefix("systemctl edit ") {
            Some(unit) => format!("/etc/systemd/system/{unit}.d/"),
            None if is_command || is_setting => piece.to_owned(),
            None => continue,
        };
        assert!(tried.contains(&expected), "try.sh does not run {piece:?}");
        count += 1;
    }
    assert!(count >= 8, "{count} commands");
}
