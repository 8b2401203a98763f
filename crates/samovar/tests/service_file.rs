//! Commands use the configuration file and the credentials of the installed service, unless others
//! are given.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skips"
)]

mod support;

use std::fs;
use std::process::Command;

use support::{samovar, sample_store};

/// Mounts that only the command sees, with the file and the credentials of a service.
const SCRIPT: &str = "set -e; mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /run; \
    mkdir /etc/samovar; cp service.toml /etc/samovar/samovar.toml; \
    mkdir -p /run/credentials/samovar.service; cp key /run/credentials/samovar.service/; \
    exec \"$@\"";

/// Runs a command of `samovar` beside the files of a service, which has a key and priority 7.
/// Returns the output, or `None` where this user may not mount file systems.
fn beside_service(words: &[&str]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let [file, key, public] = ["service.toml", "key", "public"].map(|name| dir.path().join(name));
    let mut generate = Command::new("nix-store");
    generate.args(["--store", "dummy://", "--generate-binary-cache-key"]);
    let made = generate.arg("service-1").arg(&key).arg(public).output();
    assert!(made.unwrap().status.success());
    let options = format!(
        "priority = 7\nstore = \"{}\"\nlisten = [\"127.0.0.1:0\"]\nsecret-key-files = \
         [\"credential:key\"]\n",
        sample_store()
    );
    fs::write(&file, options).unwrap();
    let other = format!("priority = 8\nstore = \"{}\"\n", sample_store());
    fs::write(dir.path().join("other.toml"), other).unwrap();
    let program = samovar();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", SCRIPT, "sh"]);
    command.arg(program.get_program()).args(words);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("CREDENTIALS_DIRECTORY");
    let done = command.current_dir(dir.path()).output().unwrap();
    let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    if text.contains("unshare: ") || text.contains("mount: ") {
        println!("not tested: this user cannot mount file systems: {text}");
        return None;
    }
    Some(text)
}

#[test]
fn doctor_alone_examines_the_service() {
    let Some(text) = beside_service(&["doctor"]) else {
        return;
    };
    assert!(
        text.contains("key: the cache signs with service-1:"),
        "{text}"
    );
}

#[test]
fn a_given_file_takes_the_place_of_that_of_the_service() {
    let check = ["serve", "--check-config"];
    let Some(text) = beside_service(&check) else {
        return;
    };
    assert!(
        text.contains("priority = 7  # /etc/samovar/samovar.toml:1"),
        "{text}"
    );
    let other = [&check[..], &["--config", "other.toml"]].concat();
    let text = beside_service(&other).unwrap();
    assert!(text.contains("priority = 8  # other.toml:1"), "{text}");
    assert!(!text.contains("credential:key"), "{text}");
}
