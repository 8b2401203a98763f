//! `bench`: compares our server with nginx and with other installed cache servers.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::command::{build_release, find, progress, repository, run};
use crate::sample;

/// Number of valid paths in the big store.
const BIG_STORE_PATHS: u64 = 1_000_000;

/// Folder of the report, relative to the repository.
const REPORT: &str = ".samovar/measured";

/// Other cache servers, measured if they are in `PATH`: name of the program, and its commands
/// without and with a signing key. `nix-serve-ng` must be installed under that name, because its
/// program is called `nix-serve` like the original and ours.
const PEERS: [(&str, &str, [&str; 2]); 2] = [
    (
        "harmonia-cache",
        "harmonia",
        [
            "printf 'bind = \"127.0.0.1:{port}\"\\nreal_nix_store = \"{store}/nix/store\"\\n' \
             >{scratch}/h.toml; CONFIG_FILE={scratch}/h.toml RUST_LOG=error exec harmonia-cache",
            "printf 'bind = \"127.0.0.1:{port}\"\\nreal_nix_store = \"{store}/nix/store\"\\n\
             sign_key_paths = [\"{key}\"]\\n' \
             >{scratch}/h.toml; CONFIG_FILE={scratch}/h.toml RUST_LOG=error exec harmonia-cache",
        ],
    ),
    (
        "nix-serve-ng",
        "nix-serve-ng",
        [
            "exec nix-serve-ng --quiet --host 127.0.0.1 --port {port} --store 'local?root={store}'",
            "NIX_SECRET_KEY_FILE={key} exec nix-serve-ng --quiet --host 127.0.0.1 --port {port} \
             --store 'local?root={store}'",
        ],
    ),
];

/// Creates the stores, builds everything with the release profile, and measures with `options`.
/// Fails if a store cannot be created, something does not build, or a measurement fails.
pub(crate) fn measure(options: &[&str]) -> Result<()> {
    let repository = repository();
    let store = repository.join(".samovar/bench");
    let big_store = repository.join(".samovar/million");
    sample::make(&store, sample::Kind::Bench)?;
    sample::make(&big_store, sample::Kind::Rows(BIG_STORE_PATHS))?;
    let programs = build_release(&["nix-serve", "samovar-bench"])?;
    let mut bench = Command::new(programs.join("samovar-bench"));
    bench.arg("--store").arg(&store);
    bench.arg("--big-store").arg(&big_store);
    bench.arg("--out").arg(repository.join(REPORT));
    for server in servers(&programs, |program| find(program).is_some()) {
        bench.arg("--server").arg(server);
    }
    run(bench.args(options))?;
    progress(&format!("the report and its chart: {REPORT}"));
    Ok(())
}

/// Returns the servers to compare, ours first, each with and without a key.
fn servers(programs: &Path, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let ours = format!(
        "exec '{}' --listen 127.0.0.1:{{port}} --store local?root={{store}}",
        programs.join("nix-serve").display()
    );
    let mut servers = vec![
        format!("samovar={ours}"),
        format!("samovar=NIX_SECRET_KEY_FILE={{key}} {ours}"),
    ];
    for (program, name, commands) in PEERS {
        if is_there(program) {
            servers.extend(commands.map(|command| format!("{name}={command}")));
        }
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_command_with_a_key_and_one_without() {
        let servers = servers(Path::new("/p"), |program| program == "harmonia-cache");
        let names: Vec<&str> = servers
            .iter()
            .map(|s| s.split('=').next().unwrap())
            .collect();
        assert_eq!(names, ["samovar", "samovar", "harmonia", "harmonia"]);
        let with_key: Vec<bool> = servers.iter().map(|s| s.contains("{key}")).collect();
        assert_eq!(with_key, [false, true, false, true]);
        for server in servers {
            assert!(
                server.contains("{port}") && server.contains("{store}"),
                "{server}"
            );
        }
    }
}
