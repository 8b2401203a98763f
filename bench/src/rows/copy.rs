//! Measures a real client: `nix copy` into an empty store on tmpfs. On a disk, creating files would
//! take longer than the server.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{Bench, millis};
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed};
use crate::machine;
use crate::process::{self, Server};
use crate::store::base_name;

/// A tmpfs that every Linux has and all users may write to.
const TMPFS: &str = "/dev/shm";

/// Measures the second `nix copy` of the closure of `path` and later ones.
pub(super) fn again(
    bench: &Bench<'_>,
    contender: &Contender,
    path: Option<&String>,
) -> Result<Values, Gap> {
    let server = &contender.standing(Setting::Plain)?.server;
    failed(copied(bench.scratch, server, path))?;
    failed(copied(bench.scratch, server, path))
}

/// Measures `nix copy` of the closure of `path` from a server that was just started.
pub(super) fn first(
    bench: &Bench<'_>,
    contender: &Contender,
    path: Option<&String>,
) -> Result<Values, Gap> {
    let running = contender.start(Setting::Plain)?;
    running.server.rest();
    failed(machine::free_pages(bench.scratch).map_err(Into::into))?;
    failed(copied(bench.scratch, &running.server, path))
}

fn copied(scratch: &Path, server: &Server, path: Option<&String>) -> Result<Values> {
    let path = path.context("a closure has a top")?;
    let home = client_home(scratch)?;
    let (server_before, client_before) = (server.cpu(), process::ended_children_cpu());
    let started = Instant::now();
    let done = copy_command(server, &home, path).output()?;
    let elapsed = started.elapsed();
    let client_cpu = process::ended_children_cpu().saturating_sub(client_before);
    // Work that the server does after the responses counts, too.
    server.rest();
    let server_cpu = server.cpu().saturating_sub(server_before);
    let said = String::from_utf8_lossy(&done.stderr);
    let is_there = home.path().join("nix/store").join(base_name(path));
    if !done.status.success() || is_there.symlink_metadata().is_err() {
        bail!("nix copy: {}", said.trim_end());
    }
    // Nix makes the copied paths read-only, so that only root could remove them. Make them
    // writable.
    Command::new("chmod")
        .args(["-R", "u+w"])
        .arg(home.path())
        .status()?;
    home.close()?;
    Ok(Values::from([
        (Quantity::WallMs, millis(elapsed)),
        (Quantity::ServerCpuMs, millis(server_cpu)),
        (Quantity::ClientCpuMs, millis(client_cpu)),
    ]))
}

/// Creates a home directory for a client: on tmpfs if there is one, otherwise below `scratch`.
pub(crate) fn client_home(scratch: &Path) -> io::Result<TempDir> {
    let tmpfs = Path::new(TMPFS);
    let parent = if tmpfs.is_dir() { tmpfs } else { scratch };
    let mut home = tempfile::Builder::new();
    home.prefix("samovar-bench-").tempdir_in(parent)
}

/// Returns a `nix copy` command isolated from this machine's configuration, caches and stores.
fn copy_command(server: &Server, home: &TempDir, path: &str) -> Command {
    let home = home.path();
    let mut command = testkit::nix::nix("nix", home);
    command
        .arg("copy")
        .args(["--no-check-sigs", "--from"])
        .arg(format!("http://{}", server.address))
        .arg("--store")
        .arg(home)
        .arg("--to")
        .arg(home)
        .arg(path)
        .stdin(Stdio::null());
    command
}
