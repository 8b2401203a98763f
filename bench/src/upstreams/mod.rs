//! `samovar-bench upstreams`: a server that passes on what upstream caches have, beside these
//! caches themselves and beside nginx with a cache, and the goals that were set for it.
//!
//! Each measurement has a new server, which knows nothing of its upstream. A proxy delays the bytes
//! between the server and the upstream, and those between a client and the upstream.

mod faults;
mod stand;
mod walk;

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use self::stand::{Stand, distant};
use crate::arguments::Arguments;
use crate::figures::to_f64;
use crate::goals::{Figures, row};
use crate::http::Client;
use crate::store::{self, hash_part};
use crate::{machine, rows};

/// Length of the large NAR's file, in bytes.
const LARGE_LEN: usize = 200 << 20;

/// Number of requests of a row with single narinfos.
const COLD_COUNT: usize = 200;

/// Number of requests for a narinfo that is known.
const KNOWN_COUNT: usize = 20_000;

/// Number of clients that ask for the same at once.
const CLIENT_COUNT: usize = 16;

/// What a scene needs.
struct Scene<'a> {
    arguments: &'a Arguments,
    stand: &'a Stand,
}

type Measure = fn(&Scene<'_>, &mut Figures) -> Result<()>;

/// The scenes, with the names that `--rows` selects.
const SCENES: [(&str, Measure); 6] = [
    ("known", known),
    ("cold", cold),
    ("walk", walks),
    ("nar", nar),
    ("crowd", crowd),
    ("faults", faults::measure),
];

/// Measures all scenes and prints the report.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    machine::enter_network_namespace();
    let load_before = machine::load();
    let (dir, closure) = store::largest_closure(&arguments.store)?;
    let large_len = match arguments.is_check {
        true => 20 << 20,
        false => LARGE_LEN,
    };
    crate::progress("starting the upstreams");
    let stand = Stand::new(&dir, closure, large_len)?;
    let mut figures = Figures::default();
    for round in 1..=arguments.rounds {
        for (name, measure) in SCENES {
            if !name.contains(&arguments.rows) {
                continue;
            }
            crate::progress(&format!("round {round}: {name}"));
            let scene = Scene {
                arguments,
                stand: &stand,
            };
            if let Err(error) = measure(&scene, &mut figures) {
                figures.has_failed = true;
                figures.gap(name, &format!("{error:#}"));
            }
        }
    }
    let remarks = [format!(
        "The closure has {} paths; the large NAR has {} MiB and is not compressed. The upstreams, \
         the clients and the delaying proxy run on the same cores.",
        stand.closure.len(),
        stand.large_len >> 20
    )];
    let how = format!("{} rounds, medians", arguments.rounds);
    let machine = machine::describe(&["nginx"], &how, &load_before);
    let text = figures.markdown(&machine, &remarks, "");
    print!("{text}");
    if let Some(folder) = &arguments.out {
        let json = serde_json::to_string_pretty(&figures.json(&machine, &remarks))?;
        fs::create_dir_all(folder)?;
        for (name, text) in [("table.md", &text), ("figures.json", &json)] {
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

impl Scene<'_> {
    /// Returns a number that is reduced for a check.
    fn count(&self, count: usize) -> usize {
        match self.arguments.is_check {
            true => count / 20,
            false => count,
        }
    }
}

/// A narinfo that is known from an upstream, beside one of the server's own store.
fn known(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = scene.stand;
    let relay = stand.relay(stand.nginx.address, "")?;
    let mut costs = Vec::new();
    // Both have no references, so their narinfos have about the same length.
    let theirs = stand.closure.first().context("a closure has a path")?;
    for path in [&stand.local, theirs] {
        let (mut client, name) = (Client::new(relay.address), hash_part(path));
        walk::narinfo(&mut client, name)?;
        relay.rest();
        let (started, before, count) = (Instant::now(), relay.cpu(), scene.count(KNOWN_COUNT));
        for _ in 0..count {
            walk::narinfo(&mut client, name)?;
        }
        let count = to_f64(count as u64);
        let wall = started.elapsed().as_secs_f64() * 1e6 / count;
        let cpu = relay.cpu().saturating_sub(before).as_secs_f64() * 1e6 / count;
        costs.push((wall, cpu));
    }
    let [(own, own_cpu), (theirs, theirs_cpu)] = costs[..] else {
        return Ok(());
    };
    figures.add(row("known", "narinfo of the own store", "µs"), "", own);
    figures.add(
        row("known", "narinfo known from an upstream", "µs"),
        "",
        theirs,
    );
    figures.add(row("known", "÷", "×").at_most(1.1), "", theirs / own);
    figures.add(
        row("known", "server CPU, ÷", "×").at_most(1.1),
        "",
        theirs_cpu / own_cpu,
    );
    Ok(())
}

/// Single narinfos that are not known, beside the upstream itself.
fn cold(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = scene.stand;
    for (round_trip_ms, name) in [
        (0, "cold narinfo, upstream at 0 ms: more than directly"),
        (20, "cold narinfo, upstream at 20 ms: more than directly"),
        (100, "cold narinfo, upstream at 100 ms: more than directly"),
    ] {
        let upstream = distant(stand.nginx.address, Duration::from_millis(round_trip_ms))?;
        let relay = stand.relay(upstream, "")?;
        let count = match round_trip_ms {
            0 => scene.count(COLD_COUNT),
            _ => scene.count(COLD_COUNT) / 4,
        };
        // The paths of the first layer refer to nothing, so nothing is looked up ahead.
        let paths: Vec<&String> = stand.closure.iter().take(count + 1).collect();
        let medians = [upstream, relay.address].map(|address| median_ms(address, &paths));
        let [direct, through] = medians;
        let row = row("cold", name, "ms").at_most(0.3);
        figures.add(row, "", through? - direct?);
    }
    Ok(())
}

/// Requests the narinfos one after the other, and returns the median time in milliseconds. The
/// first one opens the connections.
fn median_ms(address: SocketAddr, paths: &[&String]) -> Result<f64> {
    let mut client = Client::new(address);
    let mut times = Vec::new();
    for path in paths {
        let started = Instant::now();
        walk::narinfo(&mut client, hash_part(path))?;
        times.push(rows::millis(started.elapsed()));
    }
    let mut times = times.split_off(1);
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().context("no narinfo")
}

/// Walks of a closure, whose upstream is at 20 ms.
fn walks(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let (stand, round_trip) = (scene.stand, Duration::from_millis(20));
    let count = stand.closure.len();
    for (upstream, names, bound) in [
        (
            &stand.nginx,
            [
                "closure directly from nginx at 20 ms",
                "closure through the server",
                "closure through the server, again",
                "through the server ÷ directly, nginx",
            ],
            0.6,
        ),
        (
            &stand.samovar,
            [
                "closure directly from a Samovar at 20 ms",
                "closure through the server from a Samovar",
                "closure through the server from a Samovar, again",
                "through the server ÷ directly, Samovar",
            ],
            0.1,
        ),
    ] {
        let upstream = distant(upstream.address, round_trip)?;
        let (direct, found) = walk::closure(upstream, stand.top()?)?;
        ensure!(found == count, "{found} of {count} paths");
        let relay = stand.relay(upstream, "")?;
        let (through, found) = walk::closure(relay.address, stand.top()?)?;
        ensure!(found == count, "{found} of {count} paths");
        let (again, _) = walk::closure(relay.address, stand.top()?)?;
        let [direct, through, again] = [direct, through, again].map(rows::millis);
        figures.add(row("walk", names[0], "ms"), "", direct);
        figures.add(row("walk", names[1], "ms"), "", through);
        figures.add(row("walk", names[2], "ms"), "", again);
        figures.add(
            row("walk", names[3], "×").at_most(bound),
            "",
            through / direct,
        );
    }
    Ok(())
}

/// A large NAR that is not here, beside nginx with a cache; and again, when it is.
fn nar(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = scene.stand;
    let (path, url) = &stand.large;
    let get = |server: &crate::process::Server, url: &str| -> Result<(f64, f64)> {
        server.rest();
        let (started, before) = (Instant::now(), server.cpu());
        let answer = Client::new(server.address).get(url, |_| ())?;
        ensure!(answer.status == 200, "{url} gets {}", answer.status);
        ensure!(answer.body_len > stand.large_len, "{url} is short");
        let wall = rows::millis(started.elapsed());
        server.rest();
        Ok((wall, rows::millis(server.cpu().saturating_sub(before))))
    };
    let proxy = stand.proxy(stand.nginx.address)?;
    let (proxied, proxied_again) = (get(&proxy, url)?, get(&proxy, url)?);
    let verification = hashing_ms(stand.large_len);
    let mut add = |name, unit, value| figures.add(row("NAR", name, unit), "", value);
    add("cold, nginx proxy_cache", "ms", proxied.0);
    add("cold, CPU of nginx", "ms", proxied.1);
    add("CPU of hashing it", "ms", verification);
    add("again, nginx proxy_cache", "ms", proxied_again.0);
    for (options, names) in [
        (
            "nar-cache.size = \"1 GiB\"\n".to_owned(),
            [
                "cold, into the NAR cache",
                "cold, into the NAR cache, CPU",
                "again, from the NAR cache",
                "cold, into the NAR cache ÷ nginx",
                "cold, into the NAR cache, CPU ÷ (hashing + 1.2 × nginx)",
            ],
        ),
        (
            stand.storage()?,
            [
                "cold, kept in a storage",
                "cold, kept in a storage, CPU",
                "again, from the storage",
                "cold, kept in a storage ÷ nginx",
                "cold, kept in a storage, CPU ÷ (hashing + 1.2 × nginx)",
            ],
        ),
    ] {
        let relay = stand.relay(stand.nginx.address, &options)?;
        let narinfo = walk::narinfo(&mut Client::new(relay.address), hash_part(path))?;
        let own = format!("/{}", url_of(&narinfo)?);
        let (cold, again) = (get(&relay, &own)?, get(&relay, &own)?);
        let mut add = |name, unit, value| figures.add(row("NAR", name, unit), "", value);
        add(names[0], "ms", cold.0);
        add(names[1], "ms", cold.1);
        add(names[2], "ms", again.0);
        let ratio = row("NAR", names[3], "×").at_most(1.05);
        figures.add(ratio, "", cold.0 / proxied.0);
        let ratio = row("NAR", names[4], "×").at_most(1.0);
        figures.add(ratio, "", cold.1 / (verification + 1.2 * proxied.1));
    }
    Ok(())
}

/// Returns the time in which one thread hashes this many bytes.
fn hashing_ms(len: u64) -> f64 {
    let bytes = vec![7; 64 << 20];
    let started = Instant::now();
    std::hint::black_box(Sha256::digest(&bytes));
    rows::millis(started.elapsed()) * to_f64(len) / to_f64(bytes.len() as u64)
}

fn url_of(narinfo: &str) -> Result<&str> {
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    url.context("a narinfo has a URL")
}

/// Clients that ask for the same closure and the same NAR at once.
fn crowd(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    let stand = scene.stand;
    let (path, _) = &stand.large;
    let mut sent = Vec::new();
    for count in [1, CLIENT_COUNT] {
        let relay = stand.relay(stand.nginx.address, "nar-cache.size = \"1 GiB\"\n")?;
        stand.sent()?;
        let one = || -> Result<()> {
            walk::closure(relay.address, stand.top()?)?;
            let mut client = Client::new(relay.address);
            let narinfo = walk::narinfo(&mut client, hash_part(path))?;
            let url = format!("/{}", url_of(&narinfo)?);
            let answer = client.get(&url, |_| ())?;
            ensure!(answer.body_len > stand.large_len, "a NAR is short");
            Ok(())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
            let ends = all.into_iter().map(|one| one.join());
            ends.map(|end| end.unwrap_or_else(|_| Err(anyhow::anyhow!("a client has panicked"))))
                .collect::<Result<Vec<()>>>()
        })?;
        relay.rest();
        let (len, responses) = stand.sent()?;
        sent.push((to_f64(len), to_f64(responses)));
    }
    let [(one, one_count), (all, all_count)] = sent[..] else {
        return Ok(());
    };
    let name = "bytes from the upstream for 16 clients ÷ for one";
    figures.add(row("crowd", name, "×").at_most(1.005), "", all / one);
    let name = "requests to the upstream for 16 clients ÷ for one";
    figures.add(
        row("crowd", name, "×").at_most(1.005),
        "",
        all_count / one_count,
    );
    Ok(())
}
