//! npm and `cp` on the local disk, in an overlay, and on a disk that flushes every operation; and
//! the rates of packing and unpacking.

use anyhow::{Context, Result};

use super::stand::{Done, Stand, disk, run, sync};
use super::{FLUSHED, Scene};
use crate::goals::{Figures, row};

/// Installs the project without the network. Prints the CPU time of npm and the number of files.
const INSTALL: &str = "sh -c 'npm ci --offline --ignore-scripts --no-audit --no-fund \
                       --cache \"$PROJECT/.npm\" >&2 && times && \
                       find node_modules -type f | wc -l'";

/// Copies the files that npm needs to a directory.
const PREPARE: &str = "cp \"$PROJECT/package.json\" \"$PROJECT/package-lock.json\"";

/// An installation: CPU time of npm in seconds, and number of files.
fn installed(done: &Done) -> Result<(f64, f64)> {
    parse(&done.stdout).with_context(|| format!("unexpected output: {:?}", done.stdout))
}

/// Parses the output of [`INSTALL`]. The second line has the user and system time of the children
/// of the shell, as in `1m2.345s 0m6.789s`.
fn parse(text: &str) -> Option<(f64, f64)> {
    let mut lines = text.lines().skip(1);
    let times = lines.next()?.split(' ').map(|time| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    });
    let cpu = times.sum::<Option<f64>>()?;
    Some((cpu, lines.next()?.trim().parse().ok()?))
}

/// Measures npm in a workspace, which is a local directory, and in an overlay.
pub(super) fn npm(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    if scene.tree.project.is_none() {
        figures.gap("npm", "the files are not an npm project");
        return Ok(());
    }
    let stand = Stand::new(scene.arguments, scene.tree)?;
    stand.run(&format!(
        "mkdir base local && {PREPARE} base/ && {PREPARE} local/"
    ))?;
    stand.run("samovar push base mr/base --public")?;
    stand.run("samovar workspace open mr/local local --adopt --public")?;
    // Both read npm's cache from memory.
    stand.run("find \"$PROJECT/.npm\" -type f -print0 | xargs -0 cat >/dev/null")?;
    let local_line = format!("cd local && {INSTALL}");
    let overlay_line = format!("samovar workspace run mr/base --public --no-push -- {INSTALL}");
    let mut pushed = None;
    let mut local = || -> Result<Done> {
        let done = stand.measured(&local_line)?;
        let line = "samovar workspace push --dir local";
        pushed = Some(stand.run(line)?.seconds);
        Ok(done)
    };
    // Each is the first in every other round.
    let (local, overlay) = if scene.round % 2 == 1 {
        let local = local()?;
        (local, stand.measured(&overlay_line)?)
    } else {
        let overlay = stand.measured(&overlay_line)?;
        (local()?, overlay)
    };
    let (local_cpu, local_count) = installed(&local)?;
    let (overlay_cpu, overlay_count) = installed(&overlay)?;
    let mut add = |row, line: &str, value| figures.add(row, line, value);
    add(
        row(
            "G1",
            "`npm ci` in a workspace, which is a local directory",
            "s",
        ),
        &local_line,
        local.seconds,
    );
    add(row("G1", "its CPU time", "s"), &local_line, local_cpu);
    add(row("G1", "its files", ""), &local_line, local_count);
    add(
        row("G1", "`npm ci` in an overlay", "s"),
        &overlay_line,
        overlay.seconds,
    );
    add(
        row("G1", "its CPU time in the overlay", "s"),
        &overlay_line,
        overlay_cpu,
    );
    let ratio = row("G1", "CPU time, overlay ÷ local", "×").at_most(1.05);
    add(ratio, &overlay_line, overlay_cpu / local_cpu);
    let missing = row("G1", "files missing in the overlay", "").at_most(0.0);
    add(missing, &overlay_line, local_count - overlay_count);
    let line = format!("{local_line}; samovar workspace push");
    let durable = row(
        FLUSHED,
        "`npm ci` in a workspace, and push: durable on the server",
        "s",
    );
    add(durable, &line, local.seconds + pushed.unwrap_or_default());
    Ok(())
}

/// Measures, once, a disk that flushes every operation, as an NFS server with `sync` does.
pub(super) fn flushed(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    if scene.round > 1 {
        return Ok(());
    }
    let disk = disk(scene.arguments, "sync,dirsync")?;
    if !disk.is_mounted {
        figures.gap(
            "flushes for each operation",
            "no file system can be mounted here",
        );
        return Ok(());
    }
    let run = |line: &str| run(scene.tree, &disk.dir, line, &[]);
    sync()?;
    let copy = "cp -r \"$TREE\" copy";
    let copied = row(
        FLUSHED,
        "`cp -r` of the tree, ext4 with `sync,dirsync`",
        "s",
    );
    figures.add(copied, copy, run(copy)?.seconds);
    if scene.tree.project.is_none() {
        figures.gap("npm", "the files are not an npm project");
        return Ok(());
    }
    run(&format!("mkdir npm && {PREPARE} npm/"))?;
    let line = format!("cd npm && {INSTALL}");
    let done = run(&line)?;
    figures.add(
        row(FLUSHED, "`npm ci`, ext4 with `sync,dirsync`", "s"),
        &line,
        done.seconds,
    );
    Ok(())
}

/// Measures packing and unpacking without a server, by an example of `samovar-workspace`.
pub(super) fn pack(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("examples");
    let program = program.join("throughput");
    if !program.exists() {
        let reason = "cargo build --release -p samovar-workspace --example throughput";
        figures.gap("packing", &format!("the program is not built: {reason}"));
        return Ok(());
    }
    let disk = disk(scene.arguments, "")?;
    sync()?;
    let line = format!("{} \"$TREE\" --unpack .", program.display());
    let done = run(scene.tree, &disk.dir, &line, &[])?;
    let rate = |name: &str, unit: &str| {
        let rate = |line: &str| line.strip_prefix(name)?.strip_suffix(unit)?.parse().ok();
        let rate: Option<f64> = done.stdout.lines().find_map(rate);
        rate.with_context(|| format!("no rate of {name:?}: {}", done.stdout))
    };
    let line = "target/release/examples/throughput \"$TREE\" --unpack .";
    let packed = row("G8", "pack", "MB/s").at_least(500.0);
    figures.add(packed, line, rate("pack: ", " MB/s")?);
    let unpacked = row("G8", "unpack, without a flush", "files/s").at_least(40_000.0);
    figures.add(unpacked, line, rate("unpack: ", " files/s")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_an_installation_has_cpu_time_and_files() {
        let text = "0m0.001s 0m0.000s\n1m2.500000s 0m3.250000s\n42246\n";
        assert_eq!(parse(text), Some((65.75, 42_246.0)));
        assert_eq!(parse("0m0.001s 0m0.000s\n"), None);
    }
}
