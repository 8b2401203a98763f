//! A server goes to the background and switches its user as documented.
//!
//! Both change the whole process, so each test runs this executable again, with an environment
//! variable that turns one helper test into the server. Without the variable the helpers do
//! nothing.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use samovar_server::daemon::{Identity, PidFile, Role, launch};

const PART: &str = "NIX_SERVE_TEST_PART";

fn run(helper: &str, part: &str) -> Output {
    Command::new(env::current_exe().expect("has a path"))
        .args(["--exact", helper, "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .output()
        .expect("starts")
}

/// Runs as a server with `--daemonize`. The variable holds a directory, or `fail`.
#[test]
fn daemon_helper() {
    let Ok(part) = env::var(PART) else { return };
    match Role::of_process(true).expect("has a role") {
        Role::Foreground => unreachable!("daemonize is given"),
        Role::Launcher => {
            let code = launch(env::args_os().skip(1)).expect("launches");
            std::process::exit(code.into());
        }
        Role::Background(_) if part == "fail" => {
            eprintln!("nix-serve: error: the port is taken");
            std::process::exit(7);
        }
        Role::Background(background) => {
            let directory = Path::new(&part);
            let pid_file = PidFile::write(&directory.join("pid")).expect("writes");
            background
                .ready(Some(&directory.join("errors")))
                .expect("is ready");
            eprintln!("after ready");
            let session = rustix::process::getsid(None).expect("has a session");
            let leads = session == rustix::process::getpid();
            fs::write(directory.join("leads"), leads.to_string()).expect("writes");
            while !directory.join("stop").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            pid_file.remove().expect("removes");
            std::process::exit(0);
        }
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited long enough"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_launcher_ends_when_the_daemon_is_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    // `output` returns only after all ends of the pipe are closed, so the background process has
    // closed them.
    let output = run("daemon_helper", directory.path().to_str().expect("is text"));
    assert!(output.status.success(), "{output:?}");
    assert!(file("pid").exists(), "the daemon lives on");
    wait_for(|| fs::read_to_string(file("leads")).is_ok_and(|text| text == "true"));
    assert_eq!(
        fs::read_to_string(file("errors")).expect("reads"),
        "after ready\n"
    );
    fs::write(file("stop"), "").expect("writes");
    wait_for(|| !file("pid").exists());
}

#[test]
fn the_launcher_fails_as_the_daemon_does() {
    let output = run("daemon_helper", "fail");
    assert_eq!(output.status.code(), Some(7));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the port is taken"), "{errors}");
}

/// Switches to user 12345 and prints the remaining rights.
#[test]
fn identity_helper() {
    let Ok(part) = env::var(PART) else { return };
    let (user, group) = part.split_once(' ').expect("two words");
    let given = |text: &'static str| move |word: &str| (word != text).then(|| word.to_owned());
    let (user, group) = (given("-")(user), given("-")(group));
    let identity = Identity::find(user.as_deref(), group.as_deref()).expect("is there");
    if let Err(error) = identity.expect("somebody").assume() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    for line in fs::read_to_string("/proc/self/status")
        .expect("reads")
        .lines()
    {
        if ["Uid:", "Gid:", "Groups:", "CapEff:"]
            .iter()
            .any(|name| line.starts_with(name))
        {
            eprintln!("{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
}

#[test]
fn becoming_another_user_leaves_nothing_of_root() {
    let output = run("identity_helper", "12345 23456");
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = text.lines().collect();
    if rustix::process::geteuid().is_root() {
        assert_eq!(
            lines,
            [
                "Uid: 12345 12345 12345 12345",
                "Gid: 23456 23456 23456 23456",
                "Groups: 23456",
                "CapEff: 0000000000000000",
            ]
        );
    } else {
        assert_eq!(
            lines,
            ["error: only root can become user 12345, group 23456"]
        );
    }
}

#[test]
fn becoming_who_one_is_does_nothing() {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let output = run("identity_helper", &format!("{user} {group}"));
    assert!(output.status.success(), "{output:?}");
}

/// A second server is refused if the PID file names a running server.
#[test]
fn a_pid_file_of_a_running_server_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (program, path) = (
        directory.path().join("nix-serve"),
        directory.path().join("pid"),
    );
    let sleep = ["/bin/sleep", "/usr/bin/sleep"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let Some(sleep) = sleep else { return };
    std::os::unix::fs::symlink(sleep, &program).expect("links");
    let mut server = Command::new(&program).arg("600").spawn().expect("starts");
    // Wait: `spawn` may return before `/proc` shows the arguments of the new program.
    let command_line = format!("/proc/{}/cmdline", server.id());
    wait_for(|| fs::read(&command_line).is_ok_and(|bytes| bytes.ends_with(b"600\0")));
    fs::write(&path, format!("{}\n", server.id())).expect("writes");
    let refused = PidFile::write(&path);
    server.kill().and_then(|()| server.wait()).expect("ends");
    let error = refused.expect_err("the server runs").to_string();
    assert!(error.ends_with("a server that is running"), "{error}");
    PidFile::write(&path).expect("the server is dead");
}
