//! The real Nix as a client, with a fresh store each time.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::store::nix;
use crate::world::{Cause, Facts, World, lock};
use testkit::random::SplitMix64;

/// Copies and substitutes paths until the run ends. `authority` is the CA file that Nix trusts.
pub(crate) fn run(world: &World, name: &str, keys: &str, authority: &Path) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    while world.goes_on() {
        let paths = world.all();
        let facts = Arc::clone(&paths[random.index(paths.len())]);
        let addresses = *lock(&world.addresses);
        let url = match (addresses.plain, addresses.tls) {
            (_, Some(tls)) if random.percent(40) => format!("https://localhost:{}", tls.port()),
            (Some(plain), _) => format!("http://{plain}"),
            _ => continue,
        };
        copy(world, &mut random, &facts, &url, keys, authority)?;
        world.pause(100);
    }
    Ok(())
}

// Long: one client from its command to its verdict; the steps share all values.
fn copy(
    world: &World,
    random: &mut SplitMix64,
    facts: &Facts,
    url: &str,
    keys: &str,
    authority: &Path,
) -> Result<()> {
    let home = tempfile::tempdir().context("a folder for a client")?;
    let store = home.path().join("store");
    let is_copy = random.percent(50);
    let mut command: Command;
    if is_copy {
        command = nix("nix", home.path());
        command.args(["copy", "--from", url, "--to"]).arg(&store);
        command.arg(&facts.store_path);
    } else {
        command = nix("nix-store", home.path());
        command.arg("--store").arg(&store);
        command.args(["--realise", &facts.store_path, "--option", "max-jobs", "0"]);
        command.args(["--option", "substituters", url]);
    }
    command
        .args(["--option", "trusted-public-keys", keys])
        .args(["--option", "require-sigs", "true"])
        .args(["--option", "connect-timeout", "5"])
        .env("NIX_SSL_CERT_FILE", authority);
    let sent = world.now();
    let done = command.output().context("cannot start a client")?;
    let end = world.now();
    let kind = if is_copy {
        "nix copy"
    } else {
        "nix-store --realise"
    };
    let possible = facts.possible(sent, end);
    if done.status.success() {
        world.count(&format!("{kind} succeeds"));
        let mut query = nix("nix-store", home.path());
        query.arg("--store").arg(&store);
        let query = query
            .args(["--query", "--hash", &facts.store_path])
            .output()?;
        let hash = String::from_utf8_lossy(&query.stdout).trim().to_owned();
        let is_right = possible
            .iter()
            .flatten()
            .any(|version| hash == format!("sha256:{}", version.nar_hash));
        if !is_right {
            world.finding(format_args!(
                "{kind} of {} from {url} got {hash:?}, which was not registered then",
                facts.store_path
            ));
        }
        return Ok(());
    }
    world.count(&format!("{kind} fails"));
    let causes = [
        Cause::Down,
        Cause::Stopping,
        Cause::Unreadable,
        Cause::Replaced,
        Cause::FewDescriptors,
        Cause::Halted,
    ];
    let is_excused = possible.iter().any(Option::is_none)
        || possible.len() > 1
        || facts.is_damaged(sent, end)
        || world.had(&causes, sent, end);
    if !is_excused {
        world.finding(format_args!(
            "{kind} of {} from {url} failed without a cause:\n{}",
            facts.store_path,
            String::from_utf8_lossy(&done.stderr)
        ));
    }
    Ok(())
}
