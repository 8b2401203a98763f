//! A directory may have very many entries: all commands handle it, with memory in proportion to
//! their number.
//!
//! The variable `SAMOVAR_ENTRIES` sets their number. Times are printed, for long runs with
//! `--nocapture`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a long run shows the times")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use support_workspaces::{Home, assert_has, read, write};

/// Default number of entries.
const ENTRY_COUNT: usize = 3_000;

/// Address space of a command without entries, and for each entry, in bytes. It is several times
/// the memory that a command uses.
const MEMORY: usize = 1 << 30;
const MEMORY_OF_ENTRY: usize = 4 << 10;

/// Runs `samovar` with a limit of its memory. Returns its output.
#[track_caller]
fn run(home: &Home, entry_count: usize, directory: &Path, arguments: &[&str]) -> String {
    let started_at = Instant::now();
    let command = home.command_in(directory, &[]);
    let limit = MEMORY + entry_count * MEMORY_OF_ENTRY;
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--as={limit}")).arg("--");
    limited.arg(command.get_program()).args(arguments);
    limited.current_dir(directory).envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    // A long run has no time limit.
    let output = limited.output().unwrap();
    println!("{arguments:?}: {:.1} s", started_at.elapsed().as_secs_f64());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_directory_with_very_many_entries_is_pushed_and_pulled() {
    let count = std::env::var("SAMOVAR_ENTRIES").map_or(ENTRY_COUNT, |text| text.parse().unwrap());
    let home = Home::new();
    let one = home.dir("one");
    for number in 0..count {
        // Few files have contents, because removing them takes most of the time of a short run.
        let content = if number % 50 == 0 {
            number.to_string()
        } else {
            String::new()
        };
        write(&one, &format!("many/{number:07}"), content);
    }
    let command = |directory: &Path, arguments: &[&str]| run(&home, count, directory, arguments);
    let open = |name: &str, directory: &str| {
        let path = home.dir(directory);
        let path = path.to_str().unwrap();
        command(home.site.dir(), &["workspace", "open", name, path]);
    };
    open("app", "one");
    command(&one, &["workspace", "push"]);
    assert_has(&command(&one, &["workspace", "status"]), "no changes");
    open("app", "two");
    let two = home.dir("two");
    assert_has(&command(&two, &["workspace", "status"]), "no changes");
    // A change of one entry, merged into a change of another one.
    write(&two, "many/0000000", "two");
    fs::remove_file(two.join("many/0000007")).unwrap();
    write(&one, "many/new", "one");
    command(&two, &["workspace", "push"]);
    command(&one, &["workspace", "pull"]);
    command(&one, &["workspace", "push"]);
    command(&two, &["workspace", "pull"]);
    for directory in [&one, &two] {
        assert_eq!(read(directory, "many/0000000"), "two");
        assert_eq!(read(directory, "many/new"), "one");
        let names = fs::read_dir(directory.join("many")).unwrap();
        assert_eq!(names.count(), count);
    }
    // A directory without a workspace.
    let url = format!("{}#plain", home.server.url());
    command(&two, &["push", "many", &url]);
    let plain = home.dir("plain");
    command(&two, &["pull", &url, plain.to_str().unwrap()]);
    assert_eq!(fs::read_dir(plain).unwrap().count(), count);
}
