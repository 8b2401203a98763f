//! The development server of an Angular project, and the deletion of its packages: on the local
//! disk, in an overlay, and on a disk that flushes every operation.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::stand::{Stand, disk, run, sync};
use super::{FLUSHED, Scene};
use crate::goals::{Figures, row};

/// The sources of the project, with their paths.
const SOURCES: [(&str, &str); 5] = [
    ("angular.json", include_str!("app/angular.json")),
    ("tsconfig.json", include_str!("app/tsconfig.json")),
    ("src/index.html", include_str!("app/src/index.html")),
    ("src/main.ts", include_str!("app/src/main.ts")),
    ("serve.js", include_str!("serve.js")),
];

/// Creates the project in the directory `local`.
const CREATE: &str = "mkdir -p local/src && cp \"$PROJECT/package.json\" local/ && \
                      cp -r \"$TREE\" local/node_modules";

/// A directory with the project, and the names of its rows.
struct Place {
    dir: &'static str,
    start: &'static str,
    rebuild: &'static str,
    removal: &'static str,
}

const LOCAL: Place = Place {
    dir: "local",
    start: "start of the development server, local ext4",
    rebuild: "its rebuild after an edit, local ext4",
    removal: "deletion of the tree, local ext4",
};

const OVERLAY: Place = Place {
    dir: "overlay",
    start: "start of the development server, overlay",
    rebuild: "its rebuild after an edit, overlay",
    removal: "deletion of the tree, overlay",
};

const REMOVE: &str = "rm -rf node_modules";

/// Measures the development server, and the deletion, on the local disk and in an overlay whose
/// files have arrived.
pub(super) fn measure(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = Stand::new(scene.arguments, scene.tree)?;
    stand.run(CREATE)?;
    let local = stand.client_disk.dir.join("local");
    for (path, text) in SOURCES {
        fs::write(local.join(path), text)?;
    }
    stand.run("samovar push local mr/app --public")?;
    let open = "SAMOVAR_CACHE_DIR=$HOME/cache samovar workspace open --mode overlay mr/app \
                overlay --public";
    let overlay = match stand.run(open) {
        Err(error) => {
            figures.gap("development in an overlay", &format!("{error:#}"));
            None
        }
        Ok(_) => {
            stand.wait_for_files("cache")?;
            Some(stand.finally("samovar workspace close --dir overlay --discard"))
        }
    };
    let places: &[_] = match (overlay.is_some(), scene.round % 2) {
        (false, _) => &[LOCAL],
        // Each is the first in every other round.
        (true, 1) => &[LOCAL, OVERLAY],
        (true, _) => &[OVERLAY, LOCAL],
    };
    let has_project = scene.tree.project.is_some();
    if !has_project {
        figures.gap("development server", "the files are not an npm project");
    }
    for place in places {
        if has_project {
            serve(&stand, place, figures)?;
        }
        let line = format!("cd {} && {REMOVE}", place.dir);
        let done = stand.measured(&line)?;
        figures.add(row(FLUSHED, place.removal, "s"), &line, done.seconds);
    }
    if scene.round == 1 {
        remove_flushed(scene, figures)?;
    }
    Ok(())
}

/// Starts the development server in a directory, and edits a file.
fn serve(stand: &Stand<'_>, place: &Place, figures: &mut Figures) -> Result<()> {
    let line = format!("cd {} && node serve.js", place.dir);
    // The first start fills the kernel's cache.
    stand.run(&line)?;
    let done = stand.measured(&line)?;
    let times = done.stdout.split_whitespace().map(str::parse::<f64>);
    let times = times.collect::<Result<Vec<_>, _>>()?;
    for (name, milliseconds) in [place.start, place.rebuild].into_iter().zip(times) {
        figures.add(row(FLUSHED, name, "s"), &line, milliseconds / 1000.0);
    }
    Ok(())
}

/// Deletes the tree, once, on a disk that flushes every operation.
fn remove_flushed(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let disk = disk(scene.arguments, "")?;
    if !disk.is_mounted {
        return Ok(());
    }
    let run = |dir: &Path, line: &str| run(scene.tree, dir, line, &[]);
    run(&disk.dir, "cp -r \"$TREE\" node_modules")?;
    run(&disk.dir, "mount -o remount,sync,dirsync .")?;
    sync()?;
    let removed = row(
        FLUSHED,
        "deletion of the tree, ext4 with `sync,dirsync`",
        "s",
    );
    figures.add(removed, REMOVE, run(&disk.dir, REMOVE)?.seconds);
    Ok(())
}
