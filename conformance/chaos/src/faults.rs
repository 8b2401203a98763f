//! Faults in the server's environment: database, store files, limits.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::changes::{Stock, forget};
use crate::content::{Node, Shape, Version, random_tree};
use crate::server::{Shared, usage};
use crate::store::{Store, any_file, output, remove};
use crate::world::{Cause, SLACK, World, lock};
use testkit::random::SplitMix64;

/// Locks, removes, corrupts and replaces the database until the run ends.
pub(crate) fn run_database(world: &World, store: &Store) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "database");
    while world.goes_on() {
        world.pause(random.between(300, 2500));
        let time = random.between(50, 700);
        match random.weighted(&[30, 20, 15, 15]) {
            0 => locked(world, store, time)?,
            1 => away(world, store, time)?,
            2 => garbage(world, store, time)?,
            _ => replaced(world, store)?,
        }
    }
    Ok(())
}

/// Keeps a write transaction open for `time` milliseconds. With a WAL, readers are unaffected.
fn locked(world: &World, store: &Store, time: u64) -> Result<()> {
    let hold = || -> Result<()> {
        let mut child = Command::new("sqlite3")
            .arg(store.database())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start sqlite3")?;
        let mut input = child.stdin.take().context("stdin is piped")?;
        writeln!(input, ".timeout 10000\nbegin exclusive;\nselect 'held';")?;
        input.flush()?;
        let mut said = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        if line.trim() == "held" {
            world.pause(time);
        }
        drop(input);
        child.wait()?;
        Ok(())
    };
    world.count("database locked");
    if store.has_wal {
        world.note("a writer locks the database");
        hold()?;
        world.note("the writer has released its lock");
        return Ok(());
    }
    world.cause(Cause::Unreadable, hold)
}

fn away(world: &World, store: &Store, time: u64) -> Result<()> {
    let _alone = lock(&world.database_opens);
    let _gate = world.gate.write().unwrap_or_else(PoisonError::into_inner);
    let (database, aside) = (store.database(), store.database().with_extension("aside"));
    world.count("database away");
    world.cause(Cause::Unreadable, || -> Result<()> {
        fs::rename(&database, &aside)?;
        world.pause(time);
        fs::rename(&aside, &database)?;
        Ok(())
    })
}

fn garbage(world: &World, store: &Store, time: u64) -> Result<()> {
    let _alone = lock(&world.database_opens);
    let _gate = world.gate.write().unwrap_or_else(PoisonError::into_inner);
    let (database, aside) = (store.database(), store.database().with_extension("aside"));
    let other = store.database().with_extension("other");
    world.count("database garbage");
    world.cause(Cause::Unreadable, || -> Result<()> {
        fs::write(&other, "garbage ".repeat(4096))?;
        fs::hard_link(&database, &aside)?;
        fs::rename(&other, &database)?;
        world.pause(time);
        fs::rename(&aside, &database)?;
        Ok(())
    })
}

/// Replaces the database by a copy, without its `-wal` and `-shm` files, as a restore from a backup
/// does.
fn replaced(world: &World, store: &Store) -> Result<()> {
    let _alone = lock(&world.database_opens);
    let _gate = world.gate.write().unwrap_or_else(PoisonError::into_inner);
    let database = store.database();
    let other = database.with_extension("other");
    world.count("database replaced");
    world.cause(Cause::Replaced, || -> Result<()> {
        let mut copy = Command::new("sqlite3");
        let word = format!(".backup {}", other.display());
        output(copy.arg(&database).arg(word))?;
        for beside in ["sqlite-wal", "sqlite-shm"] {
            // These two files exist only with a WAL.
            fs::remove_file(database.with_extension(beside)).ok();
        }
        fs::rename(&other, &database)?;
        // The server notices the replacement within a tenth of a second. No commit may happen
        // before that.
        std::thread::sleep(std::time::Duration::from_micros(SLACK));
        Ok(())
    })
}

/// Damages and repairs files until the run ends.
pub(crate) fn run_files(world: &World, store: &Store, stock: &Stock) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "files");
    while world.goes_on() {
        world.pause(random.between(100, 800));
        let (facts, version) = &stock.victims[random.index(stock.victims.len())];
        let real = store.real(&facts.store_path);
        // Keep `--optimise` away from damaged files: if a file changes while Nix hashes it, Nix
        // would hard-link the new bytes under the hash of the old ones.
        let links = world.links.read().unwrap_or_else(PoisonError::into_inner);
        lock(&facts.damage).begin(world.now());
        lock(&facts.hidden).begin(world.now());
        let (what, is_hidden) = damage(world, version, &real, &mut random)?;
        if !is_hidden {
            // Responses in flight may contain both damaged and repaired bytes, because `sendfile`
            // sends from the page cache.
            lock(&facts.hidden).end(world.now());
        }
        world.pause(random.between(20, 600));
        if random.percent(50) {
            replace(&version.node, &real)?;
        } else {
            repair(&version.node, &real)?;
        }
        if is_hidden {
            lock(&facts.hidden).end(world.now());
        }
        lock(&facts.damage).end(world.now());
        drop(links);
        world.note(format_args!("repaired {}", facts.base_name()));
        world.count(what);
    }
    Ok(())
}

/// Damages a random file. Returns a description of the damage, and whether it can be found only by
/// reading the file.
fn damage(
    world: &World,
    version: &Version,
    real: &Path,
    random: &mut SplitMix64,
) -> Result<(&'static str, bool)> {
    let Some((path, bytes)) = any_file(&version.node, real, random) else {
        remove(real)?;
        return Ok(("removed a path", false));
    };
    let len = bytes.len() as u64;
    let (what, new_len) = match random.index(4) {
        0 => {
            let new_len = random.index(bytes.len()) as u64;
            let file = fs::File::options().write(true).open(&path)?;
            file.set_len(new_len)?;
            ("truncated a file", Some(new_len))
        }
        1 => {
            fs::remove_file(&path)?;
            ("removed a file", None)
        }
        2 => {
            let file = fs::File::options().append(true).open(&path)?;
            (&file).write_all(b"more")?;
            ("lengthened a file", Some(len + 4))
        }
        _ => {
            change_byte(&path, bytes, random)?;
            ("changed a byte", Some(len))
        }
    };
    world.note(format_args!("{what} of {}", path.display()));
    // A NAR pads file contents to multiples of eight bytes, so its size may be unchanged.
    let padded = |len: u64| len.next_multiple_of(8);
    let is_hidden = path != real && new_len.map(padded) == Some(padded(len));
    Ok((what, is_hidden))
}

fn change_byte(path: &Path, bytes: &[u8], random: &mut SplitMix64) -> Result<()> {
    let at = random.index(bytes.len());
    let file = fs::File::options().write(true).open(path)?;
    Ok(file.write_all_at(&[bytes[at] ^ 0x20], at as u64)?)
}

/// Registers paths whose files are damaged from the start, repairs them, and re-creates them with
/// new content, until the run ends. The server cannot have verified them before.
pub(crate) fn run_newborn(world: &World, store: &Store, stock: &Stock) -> Result<()> {
    const SHAPES: [Shape; 4] = [Shape::Small, Shape::Tree, Shape::Mixed, Shape::Small];
    let mut random = SplitMix64::for_actor(world.seed, "newborn");
    while world.goes_on() {
        let index = random.index(stock.newborn.len());
        let facts = &stock.newborn[index];
        let links = world.links.read().unwrap_or_else(PoisonError::into_inner);
        let gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
        if facts.latest().is_some() {
            forget(
                world,
                store,
                std::slice::from_ref(facts),
                &["--delete"],
                true,
            )?;
        }
        if facts.latest().is_some() {
            world.pause(100);
            continue;
        }
        let version = Version::new(random_tree(&mut random, SHAPES[index % 4]), Vec::new());
        let real = store.real(&facts.store_path);
        lock(&facts.damage).begin(world.now());
        store.put(facts, &version)?;
        if let Some((path, bytes)) = any_file(&version.node, &real, &mut random) {
            change_byte(&path, bytes, &mut random)?;
        }
        world.note(format_args!("registering {} damaged", facts.base_name()));
        lock(&facts.registered).begin(world.now(), Some(Arc::clone(&version)));
        store.load(&[(facts, &version)])?;
        lock(&facts.registered).end(world.now(), Some(Arc::clone(&version)));
        drop(gate);
        world.pause(random.between(50, 600));
        let gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
        let is_replaced = random.percent(50);
        // The path may have been garbage-collected.
        match facts.latest() {
            Some(_) if is_replaced => replace(&version.node, &real)?,
            Some(_) => repair(&version.node, &real)?,
            None => {}
        }
        lock(&facts.damage).end(world.now());
        drop((gate, links));
        world.note(format_args!("repaired {}", facts.base_name()));
        world.count("registered damaged");
        world.pause(random.between(100, 1500));
    }
    Ok(())
}

/// Replaces the files at `real` by a tree.
fn replace(node: &Node, real: &Path) -> Result<()> {
    if real.symlink_metadata().is_ok() {
        // Nix may have hard-linked these files to others with the same original content, and would
        // link files of the next tree to them. So repair them first.
        repair(node, real)?;
        remove(real)?;
    }
    node.write_tree(real)?;
    Ok(())
}

/// Restores the contents of damaged files in place.
fn repair(node: &Node, real: &Path) -> Result<()> {
    match node {
        Node::File { content, .. } => match fs::File::options().write(true).open(real) {
            Ok(file) => {
                file.write_all_at(content, 0)?;
                file.set_len(content.len() as u64)?;
            }
            Err(_) => node.write_tree(real)?,
        },
        Node::Dir(entries) => {
            for (name, node) in entries {
                repair(node, &real.join(OsStr::from_bytes(name)))?;
            }
        }
        Node::Link(_) => {}
    }
    Ok(())
}

/// Limits open files and fills the disk of the NAR cache, temporarily, until the run ends.
pub(crate) fn run_limits(world: &World, server: &Arc<Shared>) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "limits");
    while world.goes_on() {
        world.pause(random.between(1500, 4000));
        let time = random.between(100, 600);
        if random.percent(50) {
            few_descriptors(world, server, random.next() % 12, time)?;
        } else {
            full_disk(world, server, time);
        }
    }
    Ok(())
}

fn few_descriptors(world: &World, server: &Shared, spare: u64, time: u64) -> Result<()> {
    // Hold the lock of the server, so that no other actor replaces the process meanwhile.
    let held = lock(&server.server);
    let pid = held.pid();
    let before = getrlimit(Resource::Nofile);
    let used = usage(pid)?.descriptors as u64;
    let limit = |current| Rlimit {
        current,
        maximum: before.maximum,
    };
    world.count("few descriptors");
    world.cause(Cause::FewDescriptors, || -> Result<()> {
        prlimit(Some(pid), Resource::Nofile, limit(Some(used + spare)))?;
        world.pause(time);
        prlimit(Some(pid), Resource::Nofile, limit(before.maximum))?;
        Ok(())
    })?;
    drop(held);
    Ok(())
}

/// Fills the disk of the NAR cache; responses must be unaffected.
fn full_disk(world: &World, server: &Shared, time: u64) {
    // Hold the lock of the server, so that no other actor starts a process meanwhile: without disk
    // space it would refuse to start.
    let held = lock(&server.server);
    let file = server.setup.nar_cache.join("full");
    world.note("the disk of the NAR cache is full");
    world.count("disk full");
    // Fill the disk as far as possible; the error at its end is intended. If the folder is not on a
    // disk of its own, this only writes a few megabytes.
    fs::write(&file, vec![b'x'; 24 << 20]).ok();
    world.pause(time);
    fs::remove_file(&file).ok();
    world.note("the disk of the NAR cache has space again");
    drop(held);
}
