//! Leak search: the server runs under valgrind and answers requests for all its routes. At its
//! exit, no memory may be lost.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::server::{STOP_TIME, Shared};
use crate::world::{World, lock};

/// Maximum number of lost bytes. The server object is leaked on purpose at exit. It takes 344
/// bytes, including the objects that only it points to.
const LOST_MAX: u64 = 512;

/// Suppressions for valgrind's false reports of uninitialised bytes, each with an explanation.
const SUPPRESSIONS: &str = include_str!("../valgrind.supp");

/// Returns the command prefix that runs the server under valgrind.
pub(crate) fn wrapper(out: &Path) -> Result<Vec<String>> {
    let (log, suppressions) = (out.join("valgrind"), out.join("suppressions"));
    fs::create_dir_all(out)?;
    fs::write(&suppressions, SUPPRESSIONS)?;
    let words = [
        "valgrind",
        "--tool=memcheck",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect,possible",
        "--errors-for-leak-kinds=definite",
        "--num-callers=24",
    ]
    .iter()
    .map(|word| (*word).to_owned())
    .chain([
        format!("--log-file={}", log.display()),
        format!("--suppressions={}", suppressions.display()),
    ]);
    Ok(words.collect())
}

/// Stops the server and evaluates valgrind's report.
pub(crate) fn judge(world: &World, server: &Shared) -> Result<()> {
    let mut held = lock(&server.server);
    held.signal(Signal::TERM)?;
    held.wait(10 * STOP_TIME)?;
    let log = fs::read_to_string(server.setup.folder.join("valgrind"))?;
    let of = |what: &str| -> Result<(u64, String)> {
        let line = log.lines().find(|line| line.contains(what));
        // These lines are absent if valgrind reports "All heap blocks were freed".
        let Some(line) = line else {
            return Ok((0, format!("{what} 0 bytes")));
        };
        let (_, rest) = line.split_once(what).context("the line has it")?;
        let bytes = rest.trim().split(' ').next().unwrap_or_default();
        Ok((
            bytes.replace(',', "").parse()?,
            line.split_once("== ")
                .map_or(line, |(_, said)| said)
                .trim()
                .to_owned(),
        ))
    };
    if !log.contains("ERROR SUMMARY") {
        bail!("valgrind did not come to its end");
    }
    for what in ["definitely lost:", "indirectly lost:"] {
        let (bytes, said) = of(what)?;
        println!("{said}");
        if bytes > LOST_MAX {
            world.finding(format_args!("valgrind: {said}"));
        }
    }
    for what in ["possibly lost:", "still reachable:"] {
        println!("{}", of(what)?.1);
    }
    let errors = log.lines().find(|line| line.contains("ERROR SUMMARY"));
    let errors = errors.context("there is a summary")?;
    let (_, said) = errors.split_once("== ").unwrap_or(("", errors));
    println!("{said}");
    let uses = log.lines().filter(|line| line.contains("uninitialised"));
    let count = uses.count();
    if count > 0 {
        world.finding(format_args!(
            "valgrind: {count} uses of uninitialised bytes"
        ));
    }
    Ok(())
}
