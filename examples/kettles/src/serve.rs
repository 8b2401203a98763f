//! `kettles serve`: the server process.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use samovar_http::{Limits, Listener, Router, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::api::App;
use crate::auth::Names;
use crate::command::Commands;
use crate::ingest::{COALESCING_MS, Ingest, Options, QUEUE_LIMIT, RETAIN_DAYS, WAIT_MAX_MS};
use crate::live::Broadcaster;
use crate::metrics::Metrics;
use crate::process::{is_ignored, raise_descriptors};
use crate::store::{self, Store};

/// Time limit for responses in progress at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Interval of the live page's messages and of the engine's probe.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Length of the accept queue: after a power failure, a whole fleet reconnects at once.
const BACKLOG: u32 = 16_384;
/// Wake-up coalescing of I/O threads: they collect events for this time, because waking a thread
/// costs more than most requests. A kettle never sends its next request within this time.
const ROUND_COALESCING: Duration = Duration::from_millis(1);

/// Options of `kettles serve`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Serve {
    /// Address to listen on.
    #[arg(long, short = 'n', default_value = "127.0.0.1", value_name = "NAME")]
    pub hostname: String,
    /// Port to listen on; 0 means any.
    #[arg(long, short, default_value_t = 8080)]
    pub port: u16,
    /// SQLite file, or PostgreSQL URL.
    #[arg(long, short = 'e', default_value = "kettles.db", value_name = "STORE")]
    pub database: PathBuf,
    /// Days to keep measurements; 0 keeps them for ever. Statistics keep deleted measurements.
    #[arg(long, default_value_t = RETAIN_DAYS, value_name = "DAYS")]
    pub retain: u32,
    /// Capacity of the queue, in rows; requests beyond it get 503.
    #[arg(long, default_value_t = QUEUE_LIMIT, value_name = "ROWS", value_parser = at_least_one())]
    pub queue: usize,
    /// Least time between two commits, and, up to 1, the wake-up coalescing of busy I/O threads.
    #[arg(long, default_value_t = COALESCING_MS, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(..=1000))]
    pub coalescing: u64,
    /// Longest time a measurement may wait for the store before it gets 503.
    #[arg(long, default_value_t = WAIT_MAX_MS, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub wait: u64,
    /// File with the token required to give commands; without it no commands are accepted.
    #[arg(long, value_name = "FILE")]
    pub admin_token: Option<PathBuf>,
    /// File with the login secret; with it, only device IDs issued at login are accepted.
    #[arg(long, value_name = "FILE")]
    pub login_secret: Option<PathBuf>,
    /// Processes that share the port, for more connections than one may have. Needs PostgreSQL.
    #[arg(long, default_value_t = 1, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=32))]
    pub processes: u32,
    /// First of the loopback ports on which each process answers alone, one per process; 0 picks
    /// free ones. A restarted process keeps its port.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub own_port: u16,
    /// Number of this process, from 1; set by the supervisor.
    #[arg(long, hide = true, value_name = "NUMBER")]
    pub member: Option<u32>,
}

impl Serve {
    fn options(&self) -> Options {
        Options {
            queue_limit: self.queue.max(1),
            coalescing: Duration::from_millis(self.coalescing),
            wait_max: Duration::from_millis(self.wait),
            retain_days: self.retain,
            ..Options::default()
        }
    }

    pub(crate) fn addrs(&self) -> Result<Vec<SocketAddr>> {
        let addrs = (self.hostname.as_str(), self.port).to_socket_addrs();
        let addrs: Vec<_> = addrs
            .with_context(|| format!("no address for {}", self.hostname))?
            .collect();
        Ok(addrs)
    }

    fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.admin_token else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        match text.trim() {
            "" => bail!("{} is empty", path.display()),
            token => Ok(Some(token.to_owned())),
        }
    }
}

/// Parses a count of at least one.
pub(crate) fn at_least_one() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(1..)
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    app: Arc<App>,
    server: Server<Router>,
    writer: JoinHandle<()>,
    /// Set when the writer thread has ended.
    is_over: Arc<AtomicBool>,
}

impl Running {
    /// Opens the store and the sockets.
    ///
    /// # Errors
    ///
    /// If the store, a file of the options or a socket cannot be opened.
    pub fn start(options: &Serve, store: Box<dyn Store>) -> Result<Self> {
        raise_descriptors();
        let metrics = Arc::new(Metrics::default());
        let commands = Arc::new(Commands::default());
        let ingest = Ingest::new(
            options.options(),
            Arc::clone(&commands),
            Arc::clone(&metrics),
        );
        let ingest = Arc::new(ingest);
        let is_over = Arc::new(AtomicBool::new(false));
        let (writer, ready) = start_writer(&ingest, store, &is_over)?;
        // Requests are accepted only after the stored totals are known.
        if ready.recv().is_err() {
            drop(writer.join());
            bail!("the store cannot be read");
        }
        let is_shared = store::is_shared(&options.database);
        let token = options.token()?;
        let names = match &options.login_secret {
            Some(path) => Names::open(path)?,
            None => Names::default(),
        };
        let app = Arc::new(App::new(ingest, commands, metrics, token, is_shared, names));
        let mut builder = Server::builder(App::router(&app))
            .limits(limits())
            .coalescing(options.options().coalescing.min(ROUND_COALESCING))
            // Four workers suffice, because handlers compute for microseconds and never block.
            .workers(4);
        for addr in options.addrs()? {
            let listener = if options.member.is_some() {
                Listener::tcp_shared(addr, BACKLOG)
            } else {
                Listener::tcp(addr, BACKLOG)
            };
            let listener = listener.with_context(|| format!("cannot listen on {addr}"))?;
            builder = builder.listen(listener);
        }
        if let Some(number) = options.member {
            app.metrics.set_number(number);
            // The process's own address, at which Prometheus reads its metrics. The supervisor has
            // reserved the port.
            let own = Listener::tcp_shared((Ipv4Addr::LOCALHOST, options.own_port).into(), 128);
            builder = builder.listen(own.context("cannot listen on --own-port")?);
        }
        let server = builder.start().context("cannot start")?;
        let ports = server.local_addrs().iter().map(SocketAddr::port);
        app.metrics.listens_at(ports.collect());
        Ok(Self {
            app,
            server,
            writer,
            is_over,
        })
    }

    /// Returns the state that handlers share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Returns the first address that the server listens on.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.server.local_addrs().first().copied()
    }

    /// Serves until `is_ended` is set.
    ///
    /// # Errors
    ///
    /// If the writer ends first.
    pub fn run_until(self, is_ended: &AtomicBool) -> Result<()> {
        let mut broadcaster = Broadcaster::new(&self.app);
        let mut next = Instant::now() + TICK;
        while !is_ended.load(Ordering::Acquire) && !self.is_over.load(Ordering::Acquire) {
            self.app.send_due_commands();
            let rest = next.saturating_duration_since(Instant::now());
            if !rest.is_zero() {
                std::thread::park_timeout(rest.min(Duration::from_millis(100)));
                continue;
            }
            next += TICK;
            let asked = Instant::now();
            self.server.answers_within(TICK);
            let lag = asked.elapsed();
            self.app.metrics.engine(self.server.load(), lag);
            broadcaster.send(&self.app);
        }
        self.end()
    }

    /// Finishes responses in progress. They wait for commits, so the writer ends last.
    fn end(self) -> Result<()> {
        let has_failed = self.is_over.load(Ordering::Acquire);
        let time = if has_failed {
            Duration::ZERO
        } else {
            DRAIN_TIME
        };
        self.server.drain(time);
        self.app.ingest.close();
        if self.writer.join().is_err() || has_failed {
            bail!("the writer thread failed");
        }
        Ok(())
    }
}

type Ready = std::sync::mpsc::Receiver<()>;

fn start_writer(
    ingest: &Arc<Ingest>,
    store: Box<dyn Store>,
    is_over: &Arc<AtomicBool>,
) -> Result<(JoinHandle<()>, Ready)> {
    /// Sets the flag when it is dropped, even during a panic.
    struct Over(Arc<AtomicBool>);

    impl Drop for Over {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    let (sender, ready) = std::sync::mpsc::channel();
    let ingest = Arc::clone(ingest);
    let over = Over(Arc::clone(is_over));
    let thread = std::thread::Builder::new().name("writer".into());
    let writer = thread.spawn(move || {
        let _over = over;
        // The receiver cannot be gone: it waits for this value.
        let ready = move || sender.send(()).unwrap_or_default();
        if let Err(error) = ingest.run(store, ready) {
            crate::log::error("the store cannot be read", &error);
        }
    })?;
    Ok((writer, ready))
}

/// Returns limits for many connections that are mostly idle.
pub(crate) fn limits() -> Limits {
    Limits {
        // The number of descriptors is the only limit.
        connections_max: usize::MAX,
        // Kettles are idle most of the time, so an idle connection is never closed for a new one;
        // the new one gets 503.
        rest_time_min: Duration::MAX,
        // After a power failure, all kettles send at the same time.
        queue_len_max: 65_536,
        // Four times the interval between a kettle's requests.
        idle_time: Duration::from_secs(120),
        ..Limits::default()
    }
}

/// Installs signal handlers; returns a flag that SIGINT, SIGTERM and SIGHUP set.
///
/// # Errors
///
/// If the signal handlers cannot be installed.
pub fn ended() -> io::Result<Arc<AtomicBool>> {
    let is_ended = Arc::new(AtomicBool::new(false));
    // SIGHUP means that the terminal was closed; it stays ignored under `nohup`.
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_ended))?;
        signal_hook::flag::register(signal, Arc::clone(&is_ended))?;
    }
    Ok(is_ended)
}

/// Prints the server's address.
pub fn announce(running: &Running) {
    if let Some(addr) = running.addr() {
        say_addr(addr);
    }
}

/// Prints the live page's address.
pub(crate) fn say_addr(addr: SocketAddr) {
    // Standard output may be closed.
    drop(writeln!(io::stdout().lock(), "kettles: http://{addr}/live"));
}
