//! `samovar-bench workspaces`: a tree of forty thousand small files in workspaces, and the goals
//! that were set for them.
//!
//! Each scene of each round has new disks, because on a file system from which many files were
//! deleted, creating files takes longer. The line between client and server has the rate of
//! gigabit Ethernet.

mod develop;

mod install;
mod stand;
mod transfer;
mod tree;

use std::fs;

use anyhow::{Context, Result, ensure};

use self::tree::Tree;
use crate::arguments::Arguments;
use crate::goals::Figures;
use crate::machine;

/// Name of the rows that compare a local disk, one that flushes every operation, and a workspace.
const FLUSHED: &str = "the case";

/// Introduction of the commands.
const ENVIRONMENT: &str = "\
`sh` runs each line in a new directory, which is `HOME`. `SAMOVAR_CACHE` is the URL of the server
over gigabit Ethernet, `SLOW` over the slow line, and `SAMOVAR_TOKEN` a token with the rights
`read,push,pin`. `TREE` is the directory with the files, and `PROJECT` the npm project.";

/// What a scene needs to know.
struct Scene<'a> {
    arguments: &'a Arguments,
    tree: &'a Tree,
    /// Number of the round, from 1.
    round: u32,
}

type Measure = fn(&Scene<'_>, &mut Figures) -> Result<()>;

/// The scenes, with the names that `--rows` selects.
const SCENES: [(&str, Measure); 5] = [
    ("npm", install::npm),
    ("transfer", transfer::measure),
    ("develop", develop::measure),
    ("pack", install::pack),
    ("flushed", install::flushed),
];

/// Measures all scenes and prints the report.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    // npm may need the network, which the namespace lacks.
    tree::install(&arguments.tree)?;
    machine::enter_network_namespace();
    let tree = Tree::open(&arguments.tree, &arguments.dir, arguments.is_check)?;
    let remarks = [
        tree.remark.clone(),
        stand::disk(arguments, "")?.remark.clone(),
        stand::line_remark().into(),
    ];
    let load_before = machine::load();
    let mut figures = Figures::default();
    for round in 1..=arguments.rounds {
        for (name, measure) in SCENES {
            if !name.contains(&arguments.rows) {
                continue;
            }
            crate::progress(&format!("round {round}: {name}"));
            let scene = Scene {
                arguments,
                tree: &tree,
                round,
            };
            if let Err(error) = measure(&scene, &mut figures) {
                figures.has_failed = true;
                figures.gap(name, &format!("{error:#}"));
            }
        }
    }
    let how = format!("{} rounds, medians", arguments.rounds);
    let machine = machine::describe(&["node", "npm"], &how, &load_before);
    let json = || serde_json::to_string_pretty(&figures.json(&machine, &remarks));
    let text = figures.markdown(&machine, &remarks, ENVIRONMENT);
    match arguments.is_json {
        true => println!("{}", json()?),
        false => print!("{text}"),
    }
    if let Some(folder) = &arguments.out {
        fs::create_dir_all(folder)?;
        for (name, text) in [("table.md", &text), ("figures.json", &json()?)] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    ensure!(
        !figures.has_failed,
        "not everything was measured: see the report"
    );
    Ok(())
}
