//! `serve`: builds the server, runs it on a store with a signing key, and prints how to use it.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{build_release, find, output, progress, repository};
use crate::sample;

/// Database of the machine's store.
const MACHINE_DATABASE: &str = "/nix/var/nix/db/db.sqlite";

/// Port of the status page, unless it is in use: the default of the server.
const ADMIN_PORT: u16 = 5001;

/// The store to serve, and a path in it for examples.
pub(crate) struct Served {
    /// Server arguments that select the store; empty for the machine's store.
    pub(crate) arguments: Vec<String>,
    /// Description of the store, to be printed.
    description: String,
    /// Store path that the printed examples use.
    pub(crate) example: String,
}

/// Builds the server and replaces this process by it. Returns only on errors. Fails if the port is
/// in use, the server does not build, or the sample store or the server cannot be started.
pub(crate) fn serve(port: u16) -> Result<()> {
    // The build takes a minute.
    check_port(port)?;
    let server = build("samovar")?;
    let served = prepare_store()?;
    let key = signing_key()?;
    let storage = repository().join(".samovar/storage");
    let netrc = netrc(&server, &storage)?;
    check_port(port)?;
    let admin = format!("127.0.0.1:{}", admin_port(ADMIN_PORT, port)?);
    println!(
        "\nServing {} on port {port}, to every machine that reaches this one (0.0.0.0).",
        served.description
    );
    println!(
        "{}",
        client_lines(port, &admin, &hostname(), &key.public, &served.example)
    );
    println!("{}", push_lines(port, &served, &netrc));
    let error = Command::new(&server)
        .args(["serve", "--listen", &format!("0.0.0.0:{port}")])
        .args(["--admin-listen", &admin])
        .args(&served.arguments)
        .arg("--secret-key-files")
        .arg(&key.secret_file)
        .arg("--storage")
        .arg(&storage)
        .exec();
    Err(error).with_context(|| format!("cannot start {}", server.display()))
}

/// Fails if a program uses the port.
fn check_port(port: u16) -> Result<()> {
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    bound.map(drop).with_context(|| {
        format!(
            "cannot serve on port {port}: stop the program that uses it, or choose another port \
             with `make serve PORT=N`"
        )
    })
}

/// Returns the preferred port, or a free one if the preferred port is that of the cache or is used
/// by a program, such as a server of a test.
fn admin_port(preferred: u16, cache: u16) -> Result<u16> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    if preferred != cache && bind(preferred).is_ok() {
        return Ok(preferred);
    }
    let free = bind(0).context("cannot find a free port for the status page")?;
    Ok(free.local_addr()?.port())
}

/// Builds a program with the release profile; returns its path. Fails if it does not build.
pub(crate) fn build(program: &str) -> Result<PathBuf> {
    Ok(build_release(&[program])?.join(program))
}

/// Returns the machine's store, or the sample store if it has none.
pub(crate) fn prepare_store() -> Result<Served> {
    if Path::new(MACHINE_DATABASE).exists()
        && let Some(example) = path_of_nix().or_else(first_path)
    {
        return Ok(Served {
            arguments: Vec::new(),
            description: "the Nix store of this machine".into(),
            example,
        });
    }
    let dir = repository().join(".samovar/sample");
    sample::make(&dir, sample::Kind::Test)?;
    let manifest = fs::read_to_string(dir.join(sample::MANIFEST))?;
    let manifest: Value = serde_json::from_str(&manifest)?;
    let top = manifest
        .get("top")
        .and_then(Value::as_str)
        .context("the sample store has a top")?;
    Ok(Served {
        arguments: vec!["--store".into(), format!("local?root={}", dir.display())],
        description: format!(
            "a sample store (this machine has no Nix store), kept in {}",
            dir.display()
        ),
        example: top.to_owned(),
    })
}

/// Returns the store path of Nix itself; `None` if Nix is not installed in the store directory.
fn path_of_nix() -> Option<String> {
    let program = find("nix-store")?.canonicalize().ok()?;
    let mut components = program.strip_prefix(sample::STORE_DIR).ok()?.components();
    let name = components.next()?.as_os_str().to_str()?;
    Some(format!("{}/{name}", sample::STORE_DIR))
}

/// Returns any path of the machine's store, or `None` if the store has no paths. Such a store is
/// left by a single Nix command on a machine that does not use Nix otherwise, and is not worth
/// serving.
fn first_path() -> Option<String> {
    let names = fs::read_dir(sample::STORE_DIR).ok()?.flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let name =
        names.find(|name| name.as_bytes().get(32) == Some(&b'-') && !name.ends_with(".lock"))?;
    Some(format!("{}/{name}", sample::STORE_DIR))
}

struct Key {
    secret_file: PathBuf,
    public: String,
}

/// Returns the name of this machine.
fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "127.0.0.1".to_owned(),
        name => name.to_owned(),
    }
}

/// Returns this machine's signing key, generated on first use.
fn signing_key() -> Result<Key> {
    let folder = repository().join(".samovar");
    fs::create_dir_all(&folder)?;
    let [secret_file, public_file] =
        ["signing-key.secret", "signing-key.public"].map(|file| folder.join(file));
    if !secret_file.exists() || !public_file.exists() {
        progress("making a signing key");
        let name = format!("{}-1", key_name(&hostname()));
        let nix_store = find("nix-store").context("nix-store is missing: run `make setup`")?;
        output(
            // Nix opens a store even to generate a key, and creates a missing one, so this uses the
            // dummy store.
            Command::new(nix_store)
                .args(["--store", "dummy://"])
                .args(["--generate-binary-cache-key", &name])
                .args([&secret_file, &public_file]),
        )?;
        fs::set_permissions(&secret_file, fs::Permissions::from_mode(0o600))?;
    }
    let public = fs::read_to_string(public_file)?.trim().to_owned();
    Ok(Key {
        secret_file,
        public,
    })
}

/// Derives a key name without colons, which end the name, and spaces, which separate keys in lists.
fn key_name(hostname: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = hostname.chars().filter(|&c| plain(c)).collect();
    if name.is_empty() {
        "samovar".into()
    } else {
        name
    }
}

/// Returns a netrc file with a token for pushing, made on first use.
fn netrc(server: &Path, storage: &Path) -> Result<PathBuf> {
    let file = repository().join(".samovar/netrc");
    if !file.exists() || !storage.exists() {
        progress("making a token for pushing");
        let mut create = Command::new(server);
        create.args(["token", "create", "--name", "example", "--storage"]);
        let token = output(create.arg(storage))?;
        let text = format!(
            "machine 127.0.0.1 login example password {}\n",
            token.trim()
        );
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Returns the command that pushes the example path into the storage.
fn push_lines(port: u16, served: &Served, netrc: &Path) -> String {
    let from = match &*served.arguments {
        [_, uri] => format!(" --from '{uri}'"),
        _ => String::new(),
    };
    format!(
        "Push a path, with the token in {netrc}:

  nix --extra-experimental-features nix-command copy{from} \\
    --to 'http://127.0.0.1:{port}/upload?compression=zstd' \\
    --option netrc-file {netrc} \\
    {example}
",
        netrc = netrc.display(),
        example = served.example,
    )
}

fn client_lines(port: u16, admin: &str, hostname: &str, public_key: &str, example: &str) -> String {
    format!(
        "
Open http://127.0.0.1:{port}/ in a browser, and http://{admin}/ for the status of the server.

  url                  http://127.0.0.1:{port}
  trusted-public-keys  {public_key}

Try it from another terminal, into a store of its own:

  nix --extra-experimental-features nix-command copy \\
    --from http://127.0.0.1:{port} --to /tmp/samovar-example \\
    --option trusted-public-keys '{public_key}' \\
    {example}

For good, on each client, in /etc/nix/nix.conf:

  extra-substituters = http://{hostname}:{port}
  extra-trusted-public-keys = {public_key}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_contain_only_characters_that_nix_allows() {
        assert_eq!(key_name("box-7.example"), "box-7.example");
        assert_eq!(key_name("a:b c"), "abc");
        assert_eq!(key_name(""), "samovar");
    }

    #[test]
    fn the_lines_name_everything_a_client_needs() {
        let lines = client_lines(
            8080,
            "127.0.0.1:9090",
            "box",
            "box-1:AAAA",
            "/nix/store/x-y",
        );
        for part in [
            "http://127.0.0.1:8080/ in a browser",
            "http://127.0.0.1:9090/",
            "--from http://127.0.0.1:8080 ",
            "extra-substituters = http://box:8080\n",
            "box-1:AAAA",
            "/nix/store/x-y",
            "nix.conf",
        ] {
            assert!(lines.contains(part), "{part}");
        }
    }

    #[test]
    fn a_used_port_is_refused_for_the_cache_and_replaced_for_the_status_page() {
        let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = used.local_addr().unwrap().port();
        let error = check_port(port).unwrap_err().to_string();
        assert!(
            error.contains(&format!("port {port}: stop the program")) && error.contains("PORT=N"),
            "{error}"
        );
        let other = admin_port(port, 1).unwrap();
        assert_ne!(other, port);
        TcpListener::bind((Ipv4Addr::LOCALHOST, other)).unwrap();

        let free = testkit::free_port();
        check_port(free).unwrap();
        assert_eq!(admin_port(free, 1).unwrap(), free);
        // The cache will use it.
        assert_ne!(admin_port(free, free).unwrap(), free);
    }
}
