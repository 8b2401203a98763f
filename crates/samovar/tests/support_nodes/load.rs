//! Clients that publish and read paths through all nodes at the same time, and what they find.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::http1::{Connection, Response};
use testkit::random::SplitMix64;
use testkit::wait::holds_within;

use crate::support_uploads::{MadePath, try_upload};

/// Sizes of files: packed, an object of its own, and sent in parts.
const LENS: [u64; 3] = [4_000, 600_000, 20 << 20];

/// How often each of the sizes occurs.
const WEIGHTS: [u64; 3] = [60, 9, 1];

/// Pause of a client after a request that failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Clients that run until they are stopped.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    nodes: Vec<SocketAddr>,
    token: String,
    seed: u64,
    is_over: AtomicBool,
    path_count: AtomicU64,
    found: Mutex<Found>,
}

/// What the clients have found so far.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Paths whose publication was acknowledged.
    pub(crate) acknowledged: Vec<MadePath>,
    /// What must not happen, in sentences.
    pub(crate) violations: Vec<String>,
    /// Number of requests by kind and outcome.
    pub(crate) outcomes: BTreeMap<(&'static str, String), u64>,
    /// The longest time from the request to publish a path to the acknowledgement.
    pub(crate) longest_publish: Duration,
    /// The longest time of a narinfo that was answered.
    pub(crate) longest_read: Duration,
}

impl Load {
    /// Starts clients of these nodes. `counts`: of the clients that publish, and that read.
    pub(crate) fn start(nodes: &[SocketAddr], token: &str, seed: u64, counts: [u64; 2]) -> Self {
        let shared = Arc::new(Shared {
            nodes: nodes.to_vec(),
            token: token.to_owned(),
            seed,
            is_over: AtomicBool::new(false),
            path_count: AtomicU64::new(0),
            found: Mutex::default(),
        });
        let of = |name: &'static str, count, run: fn(&Shared, &mut SplitMix64)| {
            let shared = &shared;
            (0..count).map(move |number| {
                let shared = Arc::clone(shared);
                thread::spawn(move || {
                    let mut random = SplitMix64::for_actor(shared.seed, &format!("{name}{number}"));
                    while !shared.is_over.load(Ordering::SeqCst) {
                        run(&shared, &mut random);
                    }
                })
            })
        };
        let threads = of("publisher", counts[0], publish).chain(of("reader", counts[1], read));
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// Returns the number of paths that were acknowledged.
    pub(crate) fn acknowledged_count(&self) -> usize {
        self.shared.found().acknowledged.len()
    }

    /// Lets all clients end. Returns what they have found.
    pub(crate) fn stop(self) -> Found {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        std::mem::take(&mut *self.shared.found())
    }
}

impl Shared {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap()
    }

    fn count(&self, kind: &'static str, outcome: &io::Result<Response>) {
        let outcome = match outcome {
            Ok(response) => response.status.to_string(),
            Err(error) => error.kind().to_string(),
        };
        *self.found().outcomes.entry((kind, outcome)).or_default() += 1;
    }

    fn violated(&self, sentence: String) {
        self.found().violations.push(sentence);
    }

    fn any_node(&self, random: &mut SplitMix64) -> SocketAddr {
        self.nodes[random.index(self.nodes.len())]
    }

    /// Uploads a file until a node acknowledges it, as a client does that is started again. Returns
    /// whether one did.
    fn put(&self, random: &mut SplitMix64, kind: &'static str, target: &str, body: &[u8]) -> bool {
        while !self.is_over.load(Ordering::SeqCst) {
            let node = self.any_node(random);
            let answer = try_upload(node, &self.token, target, body);
            self.count(kind, &answer);
            match answer.map_or(0, |response| response.status) {
                200 => return true,
                // The node is away, or waits no longer.
                0 | 500..=599 => pause(),
                status => {
                    self.violated(format!("{kind} {target} is answered with {status}"));
                    return false;
                }
            }
        }
        false
    }

    /// Reads the narinfo of an acknowledged path through a node. Returns whether it is there.
    fn check_narinfo(&self, node: SocketAddr, path: &MadePath, when: &str) -> bool {
        let started_at = Instant::now();
        let answer = get(node, &path.target());
        let time = started_at.elapsed();
        self.count("GET narinfo", &answer);
        let Ok(answer) = answer else {
            pause();
            return false;
        };
        let mut found = self.found();
        found.longest_read = found.longest_read.max(time);
        drop(found);
        let text = answer.text();
        let is_right = path.narinfo().lines().all(|line| text.contains(line));
        match answer.status {
            200 if is_right => return true,
            // The database is away.
            503 => pause(),
            status => self.violated(format!(
                "{when}, node {node} answers {status} for {}: {text}",
                path.target()
            )),
        }
        false
    }

    /// Reads the NAR of an acknowledged path through a node.
    fn check_file(&self, node: SocketAddr, path: &MadePath) {
        let answer = get(node, &path.file_target());
        self.count("GET nar", &answer);
        match answer {
            Ok(answer) if answer.status == 200 && answer.body == path.file => {}
            // The bucket or the database is away.
            Ok(answer) if matches!(answer.status, 500..=599) => {}
            Ok(answer) => self.violated(format!(
                "node {node} answers {} with {} bytes for {}",
                answer.status,
                answer.body.len(),
                path.file_target()
            )),
            // The connection has ended before the end of the NAR.
            Err(_) => {}
        }
    }
}

/// Waits before the next attempt.
fn pause() {
    holds_within(PAUSE, || false);
}

/// Sends a GET request on a new connection.
fn get(node: SocketAddr, target: &str) -> io::Result<Response> {
    Connection::try_connect(node)?.try_request("GET", target, &["Connection: close"])
}

/// Publishes a path through any nodes, and reads it through all of them at once.
fn publish(shared: &Shared, random: &mut SplitMix64) {
    let number = shared.path_count.fetch_add(1, Ordering::SeqCst);
    let len_max = LENS[random.weighted(&WEIGHTS)];
    let len = random.below(len_max);
    let mut path = MadePath::new(&format!("load-{}-{number}", shared.seed))
        .containing(&random.bytes(usize::try_from(len).unwrap()));
    let below = {
        let found = shared.found();
        let count = found.acknowledged.len();
        (count > 0 && random.percent(50)).then(|| found.acknowledged[random.index(count)].clone())
    };
    if let Some(below) = below {
        path = path.referring_to(&below.store_path);
    }
    if !shared.put(random, "PUT nar", &path.file_target(), &path.file) {
        return;
    }
    let started_at = Instant::now();
    if !shared.put(
        random,
        "PUT narinfo",
        &path.target(),
        path.narinfo().as_bytes(),
    ) {
        return;
    }
    let time = started_at.elapsed();
    let mut found = shared.found();
    found.longest_publish = found.longest_publish.max(time);
    found.acknowledged.push(path.clone());
    drop(found);
    let first = random.index(shared.nodes.len());
    for at in 0..shared.nodes.len() {
        let node = shared.nodes[(first + at) % shared.nodes.len()];
        shared.check_narinfo(node, &path, "after the acknowledgement");
    }
}

/// Reads an acknowledged path through any node.
fn read(shared: &Shared, random: &mut SplitMix64) {
    let path = {
        let found = shared.found();
        let count = found.acknowledged.len();
        (count > 0).then(|| found.acknowledged[random.index(count)].clone())
    };
    let Some(path) = path else {
        return thread::yield_now();
    };
    let node = shared.any_node(random);
    if shared.check_narinfo(node, &path, "later") {
        shared.check_file(node, &path);
    }
}
