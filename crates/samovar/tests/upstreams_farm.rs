//! The day of a build farm: new machines build projects with this server as their only substituter,
//! while one of its three upstreams flaps. No build fails, and each NAR is fetched once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support_upstreams::{Act, Relay, Seen, Upstream, kept_count, try_build_of};
use testkit::eventually;
use testkit::nix::{OwnStore, key_pair, local};
use testkit::process::output;
use testkit::random::SplitMix64;

/// Number of libraries. A library needs up to three of those before it.
const LIBRARY_COUNT: usize = 30;

/// Number of projects. A project needs four libraries.
const PROJECT_COUNT: usize = 12;

/// Number of builds of the day, unless the environment sets it.
const BUILD_COUNT: usize = 24;

/// Number of machines that build at the same time.
const MACHINE_COUNT: usize = 3;

/// Number of requests after which the flapping upstream changes what it does.
const FLAP: usize = 7;

/// The expression of all derivations: an attribute set of the projects.
fn expression() -> String {
    let mut random = SplitMix64::new(1);
    let mut text = "let make = name: inputs: derivation { inherit name inputs; \
         system = builtins.currentSystem; builder = \"/bin/sh\"; args = [ \"-c\" ''/bin/mkdir \
         $out; echo $inputs > $out/inputs; i=0; while [ $i -lt 3000 ]; do echo \"$name $i \
         $((i * 7919 % 65536))\"; i=$((i + 1)); done > $out/text'' ]; }; in rec {"
        .to_owned();
    for library in 0..LIBRARY_COUNT {
        let count = random.index(4).min(library);
        let inputs: Vec<String> = (0..count)
            .map(|_| format!("l{}", random.index(library)))
            .collect();
        write!(
            text,
            " l{library} = make \"l{library}\" [ {} ];",
            inputs.join(" ")
        )
        .unwrap();
    }
    for project in 0..PROJECT_COUNT {
        let inputs: Vec<String> = (0..4)
            .map(|_| format!("l{}", random.index(LIBRARY_COUNT)))
            .collect();
        write!(
            text,
            " p{project} = make \"p{project}\" [ {} ];",
            inputs.join(" ")
        )
        .unwrap();
    }
    text + " }"
}

/// Returns the number of a project: the first one is the most frequent, by Zipf's law.
fn zipf(random: &mut SplitMix64) -> usize {
    let weights: Vec<u64> = (1..=PROJECT_COUNT as u64)
        .map(|rank| 10_000 / rank)
        .collect();
    random.weighted(&weights)
}

/// The caches of three organizations, made by Nix: one has the libraries, and each of the others
/// half of the projects with their closures.
struct World {
    dir: tempfile::TempDir,
    expression: String,
    keys: Vec<String>,
    /// Number of derivations.
    path_count: usize,
}

impl World {
    fn new() -> Self {
        let (builder, expression) = (OwnStore::new(), expression());
        let (text, messages, is_built) =
            try_build_of(&expression, &builder, &[("substituters", "")]);
        assert!(is_built, "{messages}");
        let paths: Vec<&str> = text.lines().collect();
        let dir = tempfile::tempdir().unwrap();
        let mut keys = Vec::new();
        for (number, name) in ["libraries", "first", "second"].into_iter().enumerate() {
            let (secret, key) = key_pair(dir.path(), &format!("{name}-1"));
            let has = |path: &&&str| {
                let project = path
                    .rsplit("-p")
                    .next()
                    .and_then(|text| text.parse::<usize>().ok());
                match project {
                    None => number == 0,
                    Some(project) => number > 0 && project % 2 == number - 1,
                }
            };
            let to = format!(
                "file://{}?compression=xz&secret-key={}",
                dir.path().join(name).display(),
                secret.display()
            );
            let mut copy = builder.nix.command("nix", builder.root());
            copy.args(["copy", "--from", &local(builder.root()), "--to", &to]);
            output(copy.args(paths.iter().filter(has)));
            keys.push(key);
        }
        Self {
            dir,
            expression,
            keys,
            path_count: paths.len(),
        }
    }

    fn root(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn no_build_fails_while_an_upstream_flaps() {
    let builds = std::env::var("SAMOVAR_FARM").map_or(BUILD_COUNT, |text| text.parse().unwrap());
    let world = World::new();
    let libraries = Upstream::start(&world.root("libraries"), |_| Act::Serve);
    let first = Upstream::start(&world.root("first"), |_| Act::Serve);
    let count = Arc::new(AtomicUsize::new(0));
    let flapping = Upstream::start(&world.root("second"), move |_: &Seen| {
        match count.fetch_add(1, Ordering::Relaxed) / FLAP % 4 {
            0 | 2 => Act::Serve,
            1 => Act::Close,
            _ => Act::Cut(200),
        }
    });
    let storage = world.dir.path().join("storage");
    let mut tables = format!("storage = {storage:?}\nnegative-ttl = \"1 s\"\n");
    for ((name, upstream), key) in [("up", &libraries), ("first", &first), ("flaps", &flapping)]
        .into_iter()
        .zip(&world.keys)
    {
        let url = upstream.url();
        write!(
            tables,
            "[upstreams.{name}]\nurl = {url:?}\npublic-keys = [{key:?}]\n"
        )
        .unwrap();
    }
    let relay = Relay::with(&tables);
    let (url, keys) = (relay.url(), world.keys.join(" "));
    let next = AtomicUsize::new(0);
    let built_here = AtomicUsize::new(0);
    let fetched = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for machine in 0..MACHINE_COUNT {
            let (world, next, url, keys) = (&world, &next, &url, &keys);
            let (built_here, fetched) = (&built_here, &fetched);
            let mut random = SplitMix64::new(machine as u64 + 5);
            scope.spawn(move || {
                while next.fetch_add(1, Ordering::Relaxed) < builds {
                    let project = zipf(&mut random);
                    let expression = format!("({}).p{project}", world.expression);
                    let options = [("substituters", &**url), ("trusted-public-keys", &**keys)];
                    let store = OwnStore::new();
                    let (path, messages, is_built) = try_build_of(&expression, &store, &options);
                    assert!(is_built && path.contains("-p"), "p{project}: {messages}");
                    let count = |begin: &str| {
                        let lines = messages.lines();
                        lines.filter(|line| line.starts_with(begin)).count()
                    };
                    built_here.fetch_add(count("building '"), Ordering::Relaxed);
                    fetched.fetch_add(count("copying path '"), Ordering::Relaxed);
                }
            });
        }
    });
    let (built_here, fetched) = (built_here.into_inner(), fetched.into_inner());
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    for seen in libraries.seen().iter().chain(&first.seen()) {
        if seen.is_nar() {
            *requests.entry(seen.target.clone()).or_default() += 1;
        }
    }
    let repeated = requests.values().filter(|count| **count > 1).count();
    assert_eq!(repeated, 0, "each NAR is fetched once: {requests:?}");
    let nars = requests.len();
    eventually("all that was fetched is kept", || {
        kept_count(&storage) >= nars as u64
    });
    println!(
        "{builds} builds of {} derivations: {fetched} paths fetched by machines, {built_here} \
         built; {nars} NARs requested from the upstreams that do not flap; 0 builds failed",
        world.path_count
    );
}
