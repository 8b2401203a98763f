//! The built binary handles options that start no server, such as `--help`, and refuses invalid
//! command lines.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_nix-serve");
    Command::new(program)
        .args(arguments)
        .env_clear()
        .output()
        .expect("starts")
}

#[test]
fn help_is_the_text_in_the_sources() {
    let output = run(&["--listen", ":0", "--help"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        include_str!("../src/cli/help.txt")
    );
    assert!(output.stderr.is_empty());
}

#[test]
fn version_names_the_project() {
    let output = run(&["-v"]);
    assert!(output.status.success());
    let expected = format!("nix-serve (Samovar) {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[track_caller]
fn check_refused(arguments: &[&str], expected: &str) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with(expected), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(output.stdout.is_empty());
}

/// An invalid command line causes one line of error and exit code 2.
#[test]
fn what_means_nothing_is_one_line_and_exit_code_2() {
    check_refused(
        &["--port", "abc"],
        "nix-serve: error: --port must be a port number",
    );
    check_refused(&["--workers", "x"], "nix-serve: error: --workers must be");
    check_refused(
        &["--enable-ssl"],
        "nix-serve: error: --enable-ssl asks for TLS",
    );
    check_refused(
        &["-e", "enable 'Auth::Basic'"],
        "nix-serve: error: -e runs Perl code",
    );
}
