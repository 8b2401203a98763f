//! The server writes its PID file, goes to the background and changes its user as documented.

mod support;
mod support_process;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use support::{eventually, hash_part, of_sample, sample};
use support_process::{
    Connection, NOBODY, at, ends, is_root, once, refuses_to_start, serve_sample, set_mode, signal,
};

const INFO: &str = "/nix-cache-info";

#[test]
fn a_pid_file_lives_as_long_as_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let pid = at(dir.path(), "pid");
    let (mut server, _) = serve_sample(&["--pid", &pid]);
    assert_eq!(
        fs::read_to_string(&pid).unwrap(),
        format!("{}\n", server.child.id())
    );
    let number = server.child.id().to_string();
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "--pid", &pid]);
    refuses_to_start(&mut command, &["PID file", &pid, &number, "running"]);
    assert_eq!(fs::read_to_string(&pid).unwrap(), format!("{number}\n"));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!Path::new(&pid).exists());
    // A PID file left by a process that has died is replaced.
    fs::write(&pid, format!("{number}\n")).unwrap();
    let (mut server, _) = serve_sample(&["-pid", &pid]);
    assert_eq!(
        fs::read_to_string(&pid).unwrap(),
        format!("{}\n", server.child.id())
    );
    server.child.kill().unwrap();
    server.wait();
    assert!(Path::new(&pid).exists());
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "--pid", "/nowhere/pid"]);
    refuses_to_start(&mut command, &["cannot write the PID file", "/nowhere/pid"]);
}

#[test]
fn in_the_background_when_the_command_returns() {
    let dir = tempfile::tempdir().unwrap();
    for option in ["--daemonize", "-D"] {
        let (socket, pid, log) = (
            at(dir.path(), "socket"),
            at(dir.path(), "pid"),
            at(dir.path(), "log"),
        );
        let mut command = of_sample();
        command.args([
            option,
            "--listen",
            &socket,
            "--pid",
            &pid,
            "--error-log",
            &log,
        ]);
        // Returns only after every process has closed its standard streams, the background process
        // too.
        let ending = ends(&mut command);
        assert_eq!(
            (ending.code, ending.errors.as_str()),
            (Some(0), ""),
            "{ending:?}"
        );
        assert_eq!(Connection::unix(socket.as_ref()).get(INFO).status, 200);
        let number: u32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
        let session = status
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(3)
            .unwrap();
        assert_eq!(session, number.to_string(), "it leads its session");
        signal(number, "TERM");
        eventually("it ends", || !Path::new(&pid).exists());
        assert!(!Path::new(&socket).exists());
        assert!(fs::read_to_string(&log).unwrap().contains("stopping: "));
    }
}

/// If the background process cannot start, the launching command fails and prints the error.
#[test]
fn a_start_in_the_background_that_fails_is_told_where_it_was_asked_for() {
    let (_server, addr) = serve_sample(&[]);
    let mut command = of_sample();
    command.args(["--daemonize", "--listen", &addr.to_string()]);
    refuses_to_start(&mut command, &["cannot listen on", &addr.to_string()]);
}

#[test]
fn another_user_and_group() {
    if !is_root() {
        return;
    }
    let nobody = NOBODY.to_string();
    for (arguments, uid, gid, groups) in [
        (&["--user", "nobody"][..], NOBODY, NOBODY, vec![NOBODY]),
        (
            &["--user=65534", "--group=12345"],
            NOBODY,
            12345,
            vec![12345],
        ),
        (
            &["--user", "54321", "--group", "12345"],
            54321,
            12345,
            vec![12345],
        ),
        (&["--group", nobody.as_str()], 0, NOBODY, vec![NOBODY]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let pid = at(dir.path(), "pid");
        let (mut server, addr) = serve_sample(&[arguments, &["--pid", &pid]].concat());
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let field = |name: &str| -> Vec<u32> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            line.split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect()
        };
        assert_eq!(field("Uid:"), [uid; 4], "{arguments:?}");
        assert_eq!(field("Gid:"), [gid; 4], "{arguments:?}");
        let mut found = field("Groups:");
        found.retain(|group| groups.contains(group) || *group == 0);
        assert_eq!(found, groups, "{arguments:?}");
        // Check every thread: Linux keeps user and group per thread.
        for task in fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap() {
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
                continue;
            };
            let own = status
                .lines()
                .find_map(|line| line.strip_prefix("Uid:"))
                .unwrap();
            assert!(
                own.split_whitespace()
                    .all(|number| number == uid.to_string())
            );
        }
        let hash = hash_part(&sample("tree")).to_owned();
        assert_eq!(once(addr, &format!("/nar/{hash}.nar")).status, 200);
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
    }
    for (arguments, part) in [
        (
            ["--user", "no-such-user"],
            "there is no user \"no-such-user\"",
        ),
        (
            ["--group", "no-such-group"],
            "there is no group \"no-such-group\"",
        ),
        (["--user", "54321"], "name its group with --group"),
    ] {
        let mut command = of_sample();
        refuses_to_start(
            command.args(["--listen", "127.0.0.1:0"]).args(arguments),
            &[part],
        );
    }
}

/// The user opens the logs again. The file also says why a server did not start: the new process of
/// an upgrade may have no other place for it.
#[test]
fn logs_that_root_makes_belong_to_the_user() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (errors, access) = (at(dir.path(), "errors"), at(dir.path(), "access"));
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "--user=54321", "--group=12345"]);
    command.args(["--error-log", &errors, "--access-log", &access]);
    command.args(["--pid", &at(dir.path(), "none/pid")]);
    refuses_to_start(&mut command, &["cannot write the PID file"]);
    for log in [&errors, &access] {
        let found = fs::metadata(log).unwrap();
        assert_eq!((found.uid(), found.gid()), (54321, 12345), "{log}");
    }
    let text = fs::read_to_string(&errors).unwrap();
    assert!(text.contains("error: cannot write the PID file"), "{text}");
}
