//! Push, pull and mount of the whole tree, and of changes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

use super::stand::{Done, Stand};
use super::tree::Tree;
use super::{FLUSHED, Scene};
use crate::disk::Disk;
use crate::figures::to_f64;
use crate::goals::{Figures, row};

/// Changes one file and adds one.
const EDIT: &str = "f=$(find a/node_modules -name '*.js' -size -8 | sort | head -n 1) && \
                    echo '// edited' >>\"$f\" && echo '// new' >a/node_modules/new.js";

/// A directory in memory. A disk in it shows what a pull takes without the time of flushes.
const MEMORY: &str = "/dev/shm";

const READ_ALL: &str = "find DIR -type f -print0 | xargs -0 cat >/dev/null";
const LOAD_MODULES: &str = "node modules.js DIR";

/// Measures everything that needs a server.
pub(super) fn measure(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = Stand::new(scene.arguments, scene.tree)?;
    publish(&stand, figures)?;
    pull(&stand, scene.arguments.is_check, figures)?;
    if File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_err()
    {
        figures.gap("mounts", "/dev/fuse cannot be opened");
    } else {
        mount(&stand, figures)?;
        read(&stand, figures)?;
    }
    change(&stand, scene.tree, figures)?;
    slow(&stand, figures)
}

/// Makes the tree a workspace, and pushes it.
fn publish(stand: &Stand<'_>, figures: &mut Figures) -> Result<()> {
    stand.run("mkdir a")?;
    let copy = "cp -r \"$TREE\" a/node_modules";
    let done = stand.measured(copy)?;
    figures.add(
        row(FLUSHED, "`cp -r` of the tree, local ext4", "s"),
        copy,
        done.seconds,
    );
    stand.run("samovar workspace open mr/app a --adopt --public")?;
    let line = "samovar workspace push --dir a --json";
    stand.measured("true")?;
    let before = stand.server_disk.flush_count();
    let done = stand.run(line)?;
    let after = stand.server_disk.flush_count();
    let push = row("G2", "durable push of the whole tree, zstd", "s").at_most(2.0);
    figures.add(push, line, done.seconds);
    figures.add(row("G2", "sent", "bytes"), line, done.field("sentSize")?);
    match before.zip(after) {
        None => figures.gap("flushes", "the server has no file system of its own"),
        Some((before, after)) => {
            let row = row("G2", "flushes of the server's disk", "").at_most(16.0);
            figures.add(row, line, to_f64(after - before));
        }
    }
    let line = "samovar workspace status --dir a";
    let done = stand.measured(line)?;
    let row = row("G7", "status of the unchanged workspace", "s").at_most(0.2);
    figures.add(row, line, done.seconds);
    Ok(())
}

/// Pulls the tree to plain files.
fn pull(stand: &Stand<'_>, is_check: bool, figures: &mut Figures) -> Result<()> {
    let line = "samovar pull mr/app b";
    let done = stand.measured(line)?;
    let durable = row("G3", "pull to plain files, on stable storage", "s").at_most(2.0);
    figures.add(durable, line, done.seconds);
    let memory = Disk::new(Path::new(MEMORY), (!is_check).then_some(""))?;
    symlink(&memory.dir, stand.client_disk.dir.join("memory"))?;
    let line = "samovar pull mr/app memory/b";
    let done = stand.measured(line)?;
    let row = row("G3", "pull to plain files, on a disk in memory", "s").at_most(1.2);
    figures.add(row, line, done.seconds);
    Ok(())
}

/// Mounts the tree twice: to list it at once, and to see how long the files take without a reader.
fn mount(stand: &Stand<'_>, figures: &mut Figures) -> Result<()> {
    let line = "SAMOVAR_CACHE_DIR=$HOME/cache-1 samovar mount mr/app m --background && \
                ls m/node_modules >/dev/null";
    let _unmount = stand.finally("umount m || fusermount3 -u m");
    let done = stand.measured(line)?;
    let usable = row("G4", "mount usable", "s").at_most(0.3);
    figures.add(usable, line, done.seconds);
    let find = "find m | wc -l";
    let done = stand.run(find)?;
    let found = row("G4", "`find` of everything right after", "s").at_most(0.5);
    figures.add(found, find, done.seconds);
    stand.wait_for_files("cache-1")?;

    let line = "SAMOVAR_CACHE_DIR=$HOME/cache-2 samovar mount mr/app m2 --background";
    let _unmount = stand.finally("umount m2 || fusermount3 -u m2");
    let done = stand.measured(line)?;
    stand.wait_for_files("cache-2")?;
    let hydrated = row(
        "G4",
        "all files arrived and verified, without a reader",
        "s",
    );
    let seconds = done.started.elapsed().as_secs_f64();
    figures.add(hydrated.at_most(2.0), line, seconds);
    Ok(())
}

/// Reads the whole tree through a mount whose files have arrived, and on the local disk.
fn read(stand: &Stand<'_>, figures: &mut Figures) -> Result<()> {
    let line = "SAMOVAR_CACHE_DIR=$HOME/cache-1 samovar mount mr/app m --background";
    let _unmount = stand.finally("umount m || fusermount3 -u m");
    stand.run(line)?;
    fs::write(
        stand.client_disk.dir.join("modules.js"),
        include_str!("modules.js"),
    )?;
    let both = |command: &str, names: [&'static str; 3], bound, figures: &mut Figures| {
        let [native, mounted] = ["b", "m"].map(|dir| command.replace("DIR", dir));
        // The first reads fill the kernel's caches.
        stand.run(&native)?;
        stand.run(&mounted)?;
        let (first, second) = (stand.measured(&native)?, stand.measured(&mounted)?);
        figures.add(row("G5", names[0], "s"), &native, first.seconds);
        figures.add(row("G5", names[1], "s"), &mounted, second.seconds);
        let ratio = row("G5", names[2], "×").at_most(bound);
        figures.add(ratio, &mounted, second.seconds / first.seconds);
        anyhow::Ok(())
    };
    let names = [
        "read all, local disk",
        "read all, mount",
        "read all, mount ÷ local disk",
    ];
    both(READ_ALL, names, 1.0, figures)?;
    if stand.run("node --version").is_err() {
        figures.gap("modules", "node is not installed");
        return Ok(());
    }
    let names = [
        "6,000 modules with node, local disk",
        "6,000 modules with node, mount",
        "6,000 modules with node, mount ÷ local disk",
    ];
    both(LOAD_MODULES, names, 1.1, figures)
}

/// Pushes changes of the workspace.
fn change(stand: &Stand<'_>, tree: &Tree, figures: &mut Figures) -> Result<()> {
    stand.run(EDIT)?;
    let line = "samovar workspace push --dir a --json";
    let add = |done: &Done, [time, sent]: [_; 2], figures: &mut Figures| -> Result<()> {
        figures.add(time, line, done.seconds);
        figures.add(sent, line, done.field("sentSize")?);
        Ok(())
    };
    let rows = [
        row("G6", "push after one edit and one new file", "s").at_most(1.0),
        row("G6", "sent for them", "bytes").at_most(100_000.0),
    ];
    add(&stand.measured(line)?, rows, figures)?;
    let Some(other) = tree.other_typescript() else {
        figures.gap(
            "another TypeScript",
            "the files are no project that this program installed",
        );
        return Ok(());
    };
    stand.run(&format!(
        "cp -r {}/. a/node_modules/typescript/",
        other.display()
    ))?;
    let rows = [
        row("G6", "push of another TypeScript", "s"),
        row("G6", "sent for it", "bytes").at_most(3e6),
    ];
    add(&stand.measured(line)?, rows, figures)
}

/// Opens the tree over the slow line, and pushes an edit.
fn slow(stand: &Stand<'_>, figures: &mut Figures) -> Result<()> {
    let open = "SAMOVAR_CACHE=$SLOW SAMOVAR_CACHE_DIR=$HOME/cache-3 samovar workspace open \
                --mode overlay mr/app o --public && ls o/node_modules >/dev/null";
    match stand.measured(open) {
        Err(error) => figures.gap("overlay over the slow line", &format!("{error:#}")),
        Ok(done) => {
            let _close = stand.finally("samovar workspace close --dir o");
            let row = row("G10", "open, overlay mode", "s").at_most(0.5);
            figures.add(row, open, done.seconds);
            stand.wait_for_files("cache-3")?;
        }
    }
    let open = "SAMOVAR_CACHE=$SLOW samovar workspace open mr/app d --public";
    let done = stand.measured(open)?;
    figures.add(
        row("G10", "open, all files on the disk", "s"),
        open,
        done.seconds,
    );
    stand.run(&EDIT.replace("a/", "d/"))?;
    // The workspace remembers the URL.
    let line = "samovar workspace push --dir d";
    let done = stand.measured(line)?;
    let row = row("G10", "push of one edit and one new file", "s").at_most(1.0);
    figures.add(row, line, done.seconds);
    Ok(())
}
