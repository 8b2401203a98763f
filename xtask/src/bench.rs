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
/// without and with a signing key. `nix-serve-ng` and the original, `nix-serve-perl`, must be
/// installed under these names, because their programs are called `nix-serve` like ours.
const PEERS: [(&str, &str, [&str; 2]); 4] = [
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
    // Without Plack's middleware `Head`, `nix copy` fails: responses to HEAD have a body.
    (
        "nix-serve-perl",
        "nix-serve",
        [
            "NIX_CONFIG='experimental-features = nix-command' \
             NIX_REMOTE='local?root={store}&path-info-cache-size=0' \
             exec nix-serve-perl --listen 127.0.0.1:{port} -e 'enable \"Head\"'",
            "NIX_SECRET_KEY_FILE={key} NIX_CONFIG='experimental-features = nix-command' \
             NIX_REMOTE='local?root={store}&path-info-cache-size=0' \
             exec nix-serve-perl --listen 127.0.0.1:{port} -e 'enable \"Head\"'",
        ],
    ),
    // eris sends what `nix-store --dump` reads from /nix/store.
    (
        "eris",
        "eris",
        [
            "echo \"{ listen => ['http://127.0.0.1:{port}'] }\" >{scratch}/eris.conf; \
             export ERIS_CONFIG={scratch}/eris.conf ERIS_PID_FILE={scratch}/pid HOME={scratch}; \
             exec unshare --mount sh -c 'mount --bind {store}/nix /nix && exec eris -f'",
            "echo \"{ listen => ['http://127.0.0.1:{port}'], \
             signing => { host => 'bench-1', private => '{key}' } }\" >{scratch}/eris.conf; \
             export ERIS_CONFIG={scratch}/eris.conf ERIS_PID_FILE={scratch}/pid HOME={scratch}; \
             exec unshare --mount sh -c 'mount --bind {store}/nix /nix && exec eris -f'",
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
        let servers = servers(Path::new("/p"), |program| {
            ["harmonia-cache", "eris"].contains(&program)
        });
        let names: Vec<&str> = servers
            .iter()
            .map(|s| s.split('=').next().unwrap())
            .collect();
        let expected = ["samovar", "harmonia", "eris"];
        assert_eq!(names, expected.map(|name| [name; 2]).concat());
        let with_key: Vec<bool> = servers.iter().map(|s| s.contains("{key}")).collect();
        assert_eq!(with_key, [false, true].repeat(3));
        for server in servers {
            assert!(
                server.contains("{port}") && server.contains("{store}"),
                "{server}"
            );
        }
    }
}
