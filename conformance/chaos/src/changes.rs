//! Actors that change the store with Nix: add, delete, collect garbage, optimise and import.

use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail};

use crate::content::{Node, Shape, Version, added_path, random_tree, twin};
use crate::store::Store;
use crate::world::{Facts, World, lock};
use testkit::random::SplitMix64;

/// All store paths of a run, registered or not.
#[derive(Debug)]
pub(crate) struct Stock {
    /// A dependency graph that stays valid for the whole run; the last path references all others.
    pub(crate) graph: Vec<Arc<Facts>>,
    /// Content-addressed paths that are added and deleted: expected state, the only content, and
    /// name.
    pub(crate) pool: Vec<(Arc<Facts>, Arc<Version>, String)>,
    /// Paths that alternate between two contents with files of the same lengths.
    pub(crate) twins: Vec<(Arc<Facts>, [Arc<Version>; 2])>,
    /// Paths whose files are damaged and repaired; they stay registered.
    pub(crate) victims: Vec<(Arc<Facts>, Arc<Version>)>,
    /// Paths that are registered with damaged files, then repaired, and later re-created with new
    /// content.
    pub(crate) newborn: Vec<Arc<Facts>>,
    /// Folder with the trees of the pool, by name, for `nix-store --add`.
    folder: tempfile::TempDir,
}

const GRAPH_COUNT: usize = 40;
const POOL_COUNT: usize = 60;
const TWIN_COUNT: usize = 3;
const VICTIM_COUNT: usize = 8;
const NEWBORN_COUNT: usize = 4;
const ABSENT_COUNT: usize = 12;

const SHAPES: [Shape; 5] = [
    Shape::Tiny,
    Shape::Small,
    Shape::Mixed,
    Shape::Tree,
    Shape::Large,
];

impl Stock {
    /// Generates the contents and registers the initial paths.
    // Long: one sequence, whose random numbers must be drawn in one order.
    pub(crate) fn make(world: &World, store: &Store) -> Result<Self> {
        let mut random = SplitMix64::for_actor(world.seed, "stock");
        let path = |random: &mut SplitMix64, name: &str| {
            let hash = crate::content::base32(&random.bytes(20));
            format!("/nix/store/{hash}-{name}")
        };
        let mut first: Vec<(Arc<Facts>, Arc<Version>)> = Vec::new();
        let mut graph: Vec<Arc<Facts>> = Vec::new();
        for number in 0..GRAPH_COUNT {
            let facts = Facts::new(path(&mut random, &format!("graph-{number}")));
            let mut references: Vec<String> = (0..random.index(4).min(number))
                .map(|_| graph[random.index(number)].store_path.clone())
                .collect();
            if number + 1 == GRAPH_COUNT {
                references = graph.iter().map(|facts| facts.store_path.clone()).collect();
            } else if random.percent(30) {
                references.push(facts.store_path.clone());
            }
            references.sort();
            references.dedup();
            let node = random_tree(&mut random, SHAPES[number % 4]);
            first.push((Arc::clone(&facts), Version::new(node, references)));
            graph.push(world.add(facts));
        }
        let mut victims = Vec::new();
        for number in 0..VICTIM_COUNT {
            let facts = world.add(Facts::new(path(&mut random, &format!("victim-{number}"))));
            let node = random_tree(&mut random, SHAPES[number % 5]);
            let version = Version::new(node, Vec::new());
            first.push((Arc::clone(&facts), Arc::clone(&version)));
            victims.push((facts, version));
        }
        let mut twins = Vec::new();
        for number in 0..TWIN_COUNT {
            let facts = world.add(Facts::new(path(&mut random, &format!("twin-{number}"))));
            let node = twin_tree(&mut random, number);
            let other = twin(&node, &mut random);
            let versions = [node, other].map(|node| Version::new(node, Vec::new()));
            first.push((Arc::clone(&facts), Arc::clone(&versions[0])));
            twins.push((facts, versions));
        }
        let folder = tempfile::tempdir()?;
        let mut pool = Vec::new();
        for number in 0..POOL_COUNT {
            let name = format!("pool-{number}");
            let node = random_tree(&mut random, SHAPES[number % 5]);
            node.write_tree(&folder.path().join(&name))?;
            let version = Version::new(node, Vec::new());
            let facts = Facts::new(added_path(&name, &version.nar_hash_hex));
            pool.push((world.add(facts), version, name));
        }
        let newborn = (0..NEWBORN_COUNT)
            .map(|number| world.add(Facts::new(path(&mut random, &format!("newborn-{number}")))));
        let newborn = newborn.collect();
        for number in 0..ABSENT_COUNT {
            world.add(Facts::new(path(&mut random, &format!("absent-{number}"))));
        }
        for (facts, version) in &first {
            lock(&facts.registered).begin(world.now(), Some(Arc::clone(version)));
        }
        let rows: Vec<(&Facts, &Version)> = first
            .iter()
            .map(|(facts, version)| (&**facts, &**version))
            .collect();
        store.register(&rows)?;
        for (facts, version) in &first {
            lock(&facts.registered).end(world.now(), Some(Arc::clone(version)));
        }
        for facts in graph
            .last()
            .into_iter()
            .chain(victims.iter().map(|(one, _)| one))
        {
            store.root_path(&facts.store_path)?;
        }
        Ok(Self {
            graph,
            pool,
            twins,
            victims,
            newborn,
            folder,
        })
    }
}

/// Generates a tree large enough that a slow reader is still receiving it when it changes; one tree
/// for each way of sending a NAR.
fn twin_tree(random: &mut SplitMix64, number: usize) -> Node {
    let mut file = |len: usize| Node::file(random.bytes(len));
    match number {
        0 => file(14_000_000),
        1 => Node::dir((0..40).map(|n| (format!("{n:02}"), file(350_000)))),
        _ => Node::dir((0..400).map(|n| (format!("{n:03}"), file(9_000)))),
    }
}

/// Adds, deletes, collects, optimises and imports, until the run ends.
pub(crate) fn run(world: &World, store: &Store, stock: &Stock) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "changes");
    // A separate store, from which paths are imported into the served one.
    let other = tempfile::tempdir()?;
    let other = Store::new(other.path().join("store"), true)?;
    while world.goes_on() {
        match random.weighted(&[45, 30, 6, 4, 10]) {
            0 => add(world, store, stock, &mut random)?,
            1 => delete(world, store, stock, &mut random)?,
            2 => collect(world, store, stock)?,
            3 => {
                let _links = world.links.write().unwrap_or_else(PoisonError::into_inner);
                let _gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
                world.note("optimising");
                // `--optimise` fails on a path whose files are missing at that moment, so the exit
                // status is ignored.
                store.nix_store().arg("--optimise").output()?;
                world.count("optimised");
            }
            _ => import(world, store, stock, &mut random, &other)?,
        }
        world.pause(random.between(0, 150));
    }
    Ok(())
}

fn some<'a>(
    stock: &'a Stock,
    random: &mut SplitMix64,
    are_there: bool,
) -> Vec<&'a (Arc<Facts>, Arc<Version>, String)> {
    let mut found: Vec<_> = stock
        .pool
        .iter()
        .filter(|(facts, ..)| facts.latest().is_some() == are_there)
        .collect();
    let count = 1 + random.index(4);
    while found.len() > count {
        found.swap_remove(random.index(found.len()));
    }
    found
}

fn add(world: &World, store: &Store, stock: &Stock, random: &mut SplitMix64) -> Result<()> {
    let chosen = some(stock, random, false);
    if chosen.is_empty() {
        return Ok(());
    }
    let _gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
    for (facts, version, name) in &chosen {
        world.note(format_args!("adding {name} {}", facts.hash_part()));
        lock(&facts.registered).begin(world.now(), Some(Arc::clone(version)));
    }
    let names: Vec<String> = chosen.iter().map(|(.., name)| name.clone()).collect();
    let added = store.add(stock.folder.path(), &names)?;
    for ((facts, version, name), path) in chosen.iter().zip(&added) {
        if *path != facts.store_path {
            bail!("{name} was added as {path}, not {}", facts.store_path);
        }
        lock(&facts.registered).end(world.now(), Some(Arc::clone(version)));
        world.note(format_args!("added {name}"));
        world.count("added");
    }
    Ok(())
}

fn delete(world: &World, store: &Store, stock: &Stock, random: &mut SplitMix64) -> Result<()> {
    let chosen = some(stock, random, true);
    let facts: Vec<Arc<Facts>> = chosen.iter().map(|(facts, ..)| Arc::clone(facts)).collect();
    if facts.is_empty() {
        return Ok(());
    }
    let _gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
    forget(world, store, &facts, &["--delete"], true)
}

/// Collects garbage, that is, deletes all paths without a root.
fn collect(world: &World, store: &Store, stock: &Stock) -> Result<()> {
    // Exclusive: paths that are being added have no root yet.
    let _gate = world.gate.write().unwrap_or_else(PoisonError::into_inner);
    let pool = stock.pool.iter().map(|(facts, ..)| facts);
    let twins = stock.twins.iter().map(|(facts, _)| facts);
    let facts = pool.chain(twins).chain(&stock.newborn);
    let facts = facts.filter(|facts| facts.latest().is_some());
    let facts: Vec<Arc<Facts>> = facts.cloned().collect();
    world.count("collections");
    forget(world, store, &facts, &["--gc"], false)
}

/// Runs a command that deletes paths. Then asks Nix which paths are still valid, and records the
/// result.
pub(crate) fn forget(
    world: &World,
    store: &Store,
    facts: &[Arc<Facts>],
    words: &[&str],
    are_named: bool,
) -> Result<()> {
    let before: Vec<_> = facts.iter().map(|facts| facts.latest()).collect();
    for facts in facts {
        lock(&facts.registered).begin(world.now(), None);
        world.note(format_args!("{words:?} {}", facts.base_name()));
    }
    let mut command = store.nix_store();
    command.args(words);
    if are_named {
        command.args(facts.iter().map(|facts| &facts.store_path));
    }
    // Nix may refuse to delete a path with a temporary root.
    let done = command.output().context("cannot start nix-store")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        world.note(format_args!(
            "{words:?} failed: {}",
            said.trim().replace('\n', "; ")
        ));
    }
    let ended = world.now();
    let valid = store.valid(facts)?;
    for (facts, before) in facts.iter().zip(before) {
        let is_valid = valid.contains(&facts.store_path);
        lock(&facts.registered).end(ended, before.filter(|_| is_valid));
        let what = if is_valid { "not deleted" } else { "deleted" };
        world.note(format_args!("{what} {}", facts.base_name()));
        world.count(what);
    }
    Ok(())
}

fn import(
    world: &World,
    store: &Store,
    stock: &Stock,
    random: &mut SplitMix64,
    other: &Store,
) -> Result<()> {
    let chosen = some(stock, random, false);
    let Some((facts, version, name)) = chosen.first() else {
        return Ok(());
    };
    other.add(stock.folder.path(), std::slice::from_ref(name))?;
    let exported = other.export(&[&facts.store_path])?;
    let _gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
    world.note(format_args!("importing {name} {}", facts.hash_part()));
    lock(&facts.registered).begin(world.now(), Some(Arc::clone(version)));
    store.import(&exported)?;
    lock(&facts.registered).end(world.now(), Some(Arc::clone(version)));
    world.note(format_args!("imported {name}"));
    world.count("imported");
    Ok(())
}

/// Deletes twins and re-creates them with their other content, until the run ends.
pub(crate) fn run_twins(world: &World, store: &Store, stock: &Stock) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "twins");
    while world.goes_on() {
        // Numbers beyond the last twin select the first one, whose NAR is the longest, so that it
        // is chosen most often.
        let number = random.index(stock.twins.len() + 2);
        let (facts, versions) = stock.twins.get(number).unwrap_or(&stock.twins[0]);
        let gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
        let before = facts.latest();
        if before.is_some() {
            let one = std::slice::from_ref(facts);
            forget(world, store, one, &["--delete"], true)?;
        }
        if facts.latest().is_none() {
            let was_first = before.is_some_and(|before| *before == *versions[0]);
            let next = &versions[usize::from(was_first)];
            world.note(format_args!("making {} anew", facts.base_name()));
            lock(&facts.registered).begin(world.now(), Some(Arc::clone(next)));
            store.register(&[(facts, next)])?;
            lock(&facts.registered).end(world.now(), Some(Arc::clone(next)));
            world.note(format_args!("made {} anew", facts.base_name()));
            world.count("made anew");
        }
        drop(gate);
        world.pause(random.between(50, 600));
    }
    Ok(())
}
