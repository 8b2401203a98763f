//! `samovar-bench engine`: samovar-http compared with other HTTP engines on the same endpoints.
//!
//! The rivals are in `bench/rivals`, our servers in `bench/examples/samovar.rs` and
//! `samovar_router.rs`, and the floor, which parses nothing, in `bench/examples/floor.rs`. One
//! command builds all of them, except those whose language is not installed. `--server` adds
//! others.
//!
//! Rounds are interleaved and figures are medians, as in the comparison of caches. In rows "on one
//! core", a server with one thread shares a core with its client; in the others, servers have one
//! thread per core, and server and client may use all cores.

mod contender;
mod files;
mod programs;
mod rows;
mod sleepers;
mod standing;

use anyhow::Result;

use self::contender::{Ability, Entrant};
pub(crate) use self::programs::{build_ours, programs};
use crate::arguments::Arguments;
use crate::figures::{Cell, Gap, Results, Row, Section, failed};
use crate::{machine, summary, table};

/// Creates a row without measurements.
fn row(name: &str, server_count: usize) -> Row {
    Row {
        name: name.into(),
        section: Section::Engine,
        cells: vec![Cell::default(); server_count],
    }
}

/// Performs a measurement with a server that has the required ability.
fn attempt<T>(
    entrant: &Entrant,
    ability: Ability,
    measure: impl FnOnce() -> Result<T>,
) -> Result<T, Gap> {
    if let Some(lack) = entrant.lacks(ability) {
        return Err(Gap::NotAsked(lack));
    }
    let outcome = failed(measure());
    if let Err(Gap::Failed(why)) = &outcome {
        crate::progress(&format!("{}: {why}", entrant.kind.name()));
    }
    outcome
}

/// Compares the engines. Fails if a server does not build, start or respond correctly.
pub(crate) fn run(options: &Arguments) -> Result<()> {
    if !machine::is_inside_namespace() {
        programs::build()?;
    }
    machine::enter_network_namespace();
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let files = files::Files::make(scratch.path())?;
    let load_before = machine::load();
    let mut entrants = contender::entrants(&options.servers);
    for entrant in entrants.iter_mut().filter(|it| it.is_present()) {
        crate::progress(&format!("checking {}", entrant.kind.name()));
        let server = entrant.kind.start(&files, 1)?;
        entrant.check(&server)?;
    }
    let mut rows = rows::measure(options, &entrants, &files, scratch.path())?;
    rows.extend(standing::measure(options, &entrants, &files));
    rows.extend(sleepers::measure(options, &entrants, &files));
    let kinds = entrants.iter().map(|entrant| entrant.kind);
    let servers = kinds.map(|kind| (kind.name().to_owned(), kind.part()));
    let results = Results {
        servers: servers.collect(),
        rows,
    };
    let how = format!(
        "{} rounds of {} s, medians",
        options.rounds, options.seconds
    );
    println!(
        "{}",
        machine::describe(&["nginx", "wrk"], &how, &load_before)
    );
    println!("{}{}", summary::render(&results), table::render(&results));
    Ok(())
}
