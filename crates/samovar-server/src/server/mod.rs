//! A server from its first line to its last.
//!
//! # Order
//!
//! What can fail comes first, and everything that fails is said in one line: the store, the key,
//! the sockets. Then the process gives up its rights, catches signals, starts to serve, and says
//! so.
//!
//! | signal | what happens |
//! |---|---|
//! | HUP | caches, keys and certificate read again (bad ones are refused, the old stay), logs opened anew |
//! | USR1 | logs opened anew, and what was counted since the start is said |
//! | USR2 | the executable is started anew and takes over: `upgrade.rs` |
//! | QUIT | no new connections; ends when those there are have their answers |
//! | TERM, INT | the same, but ends after [`STOP_TIME`]; the second one ends at once |

mod admin;
mod bind;
mod caches;
mod counts;
mod kept;
mod observer;
mod throttle;
mod upgrade;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustix::process::{Resource, getrlimit, setrlimit};
use samovar_cache::{LeaseConfig, Program, Site, SiteConfig, Trust};
use samovar_http::Server;
use samovar_http::tls::{ClientCertificates, TlsConfig};
use samovar_metrics::{Metrics, Observer};
use samovar_store::{Settings, StoreUri};

use crate::config::{CacheSettings, Configuration, GcLease, Names, Tls, Verify};
use crate::daemon::{Background, Identity, PidFile};
use crate::log::{AccessLog, ErrorLog, Level};
use crate::notify;
use crate::signals::{Signal, listen};
use admin::Planned;
use observer::Logs;
use upgrade::Successor;
pub use upgrade::{Predecessor, START_TIME};

/// How long answers under way may go on after TERM.
pub const STOP_TIME: Duration = Duration::from_secs(10);
/// How long they may after QUIT: as good as for ever.
const DRAIN_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the last lines may take to reach their files.
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// An I/O thread that does not answer within this is stuck.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Reads the configuration again, for HUP.
pub type Again<'a> = dyn Fn() -> anyhow::Result<Configuration> + 'a;

/// Serves until a signal ends it. What HUP changes is asked of `again`.
///
/// # Errors
///
/// If it cannot start. The message is one line: who erred, and what to do.
pub fn run(
    config: &Configuration,
    again: &Again<'_>,
    background: Option<Background>,
    predecessor: Option<Predecessor>,
) -> anyhow::Result<()> {
    let verbosity = match config.is_verbose {
        true => Level::Debug,
        false => Level::Info,
    };
    let errors = ErrorLog::open(config.names.program, config.error_log.as_deref(), verbosity)
        .with_context(|| {
            format!(
                "cannot open the error log {:?}",
                config.error_log.as_deref().unwrap_or(Path::new("-"))
            )
        })?;
    for remark in &config.remarks {
        errors.warning(remark);
    }
    let outcome = serve(config, again, background, predecessor, &errors);
    errors.flush(FLUSH_TIME);
    outcome
}

/// Reads what the configuration names, as far as that changes nothing: keys, the certificate, the
/// store.
///
/// # Errors
///
/// What would keep the server from starting.
pub fn check(config: &Configuration) -> anyhow::Result<()> {
    let errors = ErrorLog::open(config.names.program, None, Level::Warning)
        .context("cannot write to standard error")?;
    let outcome = check_parts(config, &errors);
    errors.flush(FLUSH_TIME);
    outcome
}

fn check_parts(config: &Configuration, errors: &ErrorLog) -> anyhow::Result<()> {
    caches::read(&config.caches, errors)?;
    kept::check(config)?;
    Identity::find(config.user.as_deref(), config.group.as_deref())?;
    if let Some(tls) = &config.tls {
        read_certificate(tls, &config.names, errors)?;
    }
    open_store(config, errors)?;
    Ok(())
}

fn serve(
    config: &Configuration,
    again: &Again<'_>,
    background: Option<Background>,
    predecessor: Option<Predecessor>,
    errors: &ErrorLog,
) -> anyhow::Result<()> {
    let access = config
        .access_log
        .as_ref()
        .map(|target| {
            AccessLog::open(target, config.access_log_format, errors.clone()).with_context(|| {
                let option = config.names.option("log.access");
                format!("cannot open the access log {target}: set {option} to another file")
            })
        })
        .transpose()?;
    let logs = Arc::new(Logs::new(access, errors.clone(), config.client_address));
    let caches = caches::read(&config.caches, errors)?;
    kept::check(config)?;
    let identity = Identity::find(config.user.as_deref(), config.group.as_deref())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Before rights are given up: the certificate's key may be for root alone.
    let tls = match &config.tls {
        Some(tls) => Some(bind::Secure {
            options: tls,
            config: read_certificate(tls, &config.names, errors)?,
        }),
        None => None,
    };
    let predecessor_pid = predecessor.as_ref().map(Predecessor::pid);
    let (mut listeners, mut socket_files, release) = match predecessor {
        Some(predecessor) => {
            let taken = predecessor.take(tls.as_ref().map(|tls| &tls.config))?;
            let (listeners, files) = bind::taken(taken.listeners);
            (listeners, files, Some(taken.release))
        }
        None => {
            let (listeners, files) = bind::listeners(config, tls.as_ref(), errors)?;
            (listeners, files, None)
        }
    };
    for listener in &mut listeners {
        listener
            .spread(cores)
            .context("cannot listen with one socket a thread")?;
    }
    let planned = Planned::bind(
        config,
        || Metrics::new(Arc::clone(&logs) as _),
        release.is_some(),
        errors,
    )?;
    let pid_file = match (&config.pid_file, &release) {
        (Some(path), None) => Some(PidFile::write(path)?),
        _ => None,
    };
    // It names the running server until this one serves.
    let next_pid_file = match (&config.pid_file, &release) {
        (Some(path), Some(_)) => Some(PidFile::prepare(path, predecessor_pid)?),
        _ => None,
    };
    if let Some(identity) = &identity {
        identity.assume()?;
    }
    // Opened by the one who will read it: what only root can read is of no use later.
    let store = open_store(config, errors)?;
    let site_config = SiteConfig {
        caches,
        nar_cache: kept::space(config, errors)?,
        gc_lease: gc_lease(config),
        trust: trust(config),
        program: Program {
            name: config.names.program.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        ..SiteConfig::default()
    };
    raise_descriptor_limit();
    let observer: Arc<dyn Observer> = match &planned {
        Some(planned) => Arc::clone(&planned.metrics) as _,
        None => Arc::clone(&logs) as _,
    };
    let site = Site::new(store, site_config, observer);
    logs.introduce(site.clients());
    let prefixes: Vec<&str> = config.caches.iter().map(|cache| &*cache.prefix).collect();
    let prefixes = prefixes.join(", ");
    let mut builder = Server::builder(site)
        .limits(config.limits.clone())
        .io_threads(cores);
    if let Some(workers) = config.workers.map(NonZeroU32::get) {
        builder = builder.workers(usize::try_from(workers).unwrap_or(usize::MAX));
    }
    let mut addresses = Vec::new();
    let kinds: Vec<_> = listeners.iter().map(|one| socket_files.kind(one)).collect();
    for listener in listeners {
        let scheme = if listener.is_secure() {
            "https"
        } else {
            "http"
        };
        addresses.extend(listener.local_addr().map(|address| (scheme, address)));
        builder = builder.listen(listener);
    }
    let (sender, events) = channel();
    let signals = sender.clone();
    let _signals = listen(move |signal| signals.send(Event::Signal(signal)).is_ok())
        .context("cannot catch signals")?;
    let server = Arc::new(builder.start().context("cannot start threads")?);
    let watched = Arc::downgrade(&server);
    let _watchdog = notify::watchdog(move || {
        watched
            .upgrade()
            .is_some_and(|server| server.answers_within(ANSWER_TIME))
    })
    .context("cannot start the watchdog's thread")?;
    for (scheme, address) in &addresses {
        errors.info(format_args!(
            "serving {} on {scheme}://{address}{}",
            server.service().store().store_dir(),
            prefixes
        ));
    }
    for path in socket_files.paths() {
        errors.info(format_args!(
            "serving {} on unix:{}",
            server.service().store().store_dir(),
            path.display()
        ));
    }
    if let Some(background) = background {
        background.ready(config.error_log.as_deref())?;
    }
    let pid_file = match next_pid_file {
        Some(prepared) => Some(prepared.put()?),
        None => pid_file,
    };
    match release {
        // The manager listens to the running server, which tells it of this one.
        Some(release) => release.release().context("the running server is gone")?,
        None => notify::ready(),
    }
    let said: Vec<String> = addresses
        .iter()
        .map(|(scheme, address)| format!("{scheme}://{address}"))
        .chain(
            socket_files
                .paths()
                .map(|path| format!("unix:{}", path.display())),
        )
        .collect();
    let admin = planned
        .map(|planned| planned.start(&server, config, &said, errors))
        .transpose()?;
    server.service().warm_up();
    server
        .service()
        .prefetch_narinfos()
        .context("cannot start a thread")?;
    server
        .service()
        .watch_files()
        .context("cannot start a thread")?;
    let reload = || {
        reload(server.service(), config, again, &logs);
        if let Some(tls) = &tls {
            reload_certificate(tls.options, &tls.config, errors);
        }
    };
    let upgrade = || Successor::start(&server, &kinds, sender.clone());
    let taken_over = || {
        if let Some(admin) = &admin {
            admin.leave();
        }
    };
    if wait(&server, &events, &reload, &upgrade, &taken_over, &logs) == Ended::TakenOver {
        socket_files.leave();
    }
    server.service().stop_watching();
    // To drop it is to wait for its workers, and one may wait for a disk for ever. As far as the
    // kernel lets go of who waits there, it ends with the process.
    std::mem::forget(server);
    logs.flush(FLUSH_TIME);
    drop(socket_files);
    if let Some(pid_file) = pid_file
        && let Err(error) = pid_file.remove()
    {
        errors.debug(format_args!("cannot remove the pid file: {error}"));
    }
    Ok(())
}

/// Allows as many descriptors as the system lets us: one a connection, and some for files. Service
/// managers give 1024 by default, for programs that use `select`.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it may not be raised, the limit of connections is lower; nothing else changes.
    setrlimit(Resource::Nofile, limit).ok();
}

/// What the main thread waits for.
#[derive(Debug)]
enum Event {
    Signal(Signal),
    /// Whether the process that was started to take over has done so.
    Successor(std::io::Result<bool>),
}

/// Why a server has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// It was told to.
    Told,
    /// Another process serves in its place.
    TakenOver,
}

/// Lives until it is told to end, and ends.
fn wait(
    server: &Arc<Server<Site>>,
    events: &Receiver<Event>,
    reload: &dyn Fn(),
    upgrade: &dyn Fn() -> anyhow::Result<Successor>,
    taken_over: &dyn Fn(),
    logs: &Logs,
) -> Ended {
    let mut successor = None;
    let (deadline, ended) = loop {
        match events.recv() {
            Ok(Event::Signal(Signal::Reload)) => {
                notify::reloading();
                reload();
                notify::ready();
            }
            Ok(Event::Signal(Signal::ReopenLogs)) => {
                logs.reopen();
                logs.say_counts();
            }
            Ok(Event::Signal(Signal::ChangeWorkers)) => {
                logs.errors
                    .info("the number of workers is fixed: --workers sets it at start");
            }
            Ok(Event::Signal(Signal::Upgrade)) => {
                if successor.is_none() {
                    successor = begin_upgrade(upgrade, &logs.errors);
                }
            }
            Ok(Event::Successor(outcome)) => {
                let Some(mut new) = successor.take() else {
                    continue;
                };
                if matches!(outcome, Ok(true)) {
                    notify::main_process(new.pid());
                    logs.errors.info(format_args!(
                        "process {} has taken over: answers under way are finished here",
                        new.pid()
                    ));
                    break (DRAIN_TIME, Ended::TakenOver);
                }
                let how = match outcome {
                    Ok(_) => new.fail(),
                    // Too late: it must not come to serve any more, nor to write its pid file.
                    Err(_) => new.end(),
                };
                logs.errors.error(format_args!(
                    "the new executable did not start ({how}): this one serves on; mend what it \
                     says and send USR2 again"
                ));
            }
            Ok(Event::Signal(Signal::Drain)) => break (DRAIN_TIME, Ended::Told),
            // Nobody could tell it to end any more.
            Ok(Event::Signal(Signal::Stop)) | Err(_) => break (STOP_TIME, Ended::Told),
        }
    };
    if ended == Ended::TakenOver {
        taken_over();
    } else {
        if let Some(mut new) = successor {
            new.end();
        }
        // Now and not at the end: from here on the manager waits as long as its own limit for
        // stopping says, and its watchdog no longer expects every thread to answer.
        notify::stopping();
        logs.errors
            .info("ending: answers under way are finished, no new connections");
    }
    drain(server, events, deadline, logs);
    ended
}

fn begin_upgrade(
    upgrade: &dyn Fn() -> anyhow::Result<Successor>,
    errors: &ErrorLog,
) -> Option<Successor> {
    match upgrade() {
        Ok(new) => {
            errors.info(format_args!("starting process {} to take over", new.pid()));
            Some(new)
        }
        Err(error) => {
            errors.error(format_args!("{error:#}: this one serves on"));
            None
        }
    }
}

fn drain(server: &Arc<Server<Site>>, events: &Receiver<Event>, deadline: Duration, logs: &Logs) {
    let draining = Arc::clone(server);
    let drain = std::thread::spawn(move || draining.drain(deadline));
    let mut stops = u32::from(deadline == STOP_TIME);
    while !drain.is_finished() {
        match events.recv_timeout(Duration::from_millis(20)) {
            Ok(Event::Signal(Signal::Stop)) => {
                stops += 1;
                let time = if stops > 1 { Duration::ZERO } else { STOP_TIME };
                let hurried = Arc::clone(server);
                // Only shortens the deadline; the thread above waits for the end.
                std::thread::spawn(move || hurried.drain(time));
            }
            Ok(Event::Signal(Signal::Reload | Signal::ReopenLogs)) => logs.reopen(),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let cut = server.connection_count();
    if cut > 0 {
        logs.errors
            .warning(format_args!("{cut} connections were cut off"));
    }
    logs.say_counts();
}

/// What cannot be read again stays as it was, and is said.
fn reload(site: &Site, started: &Configuration, again: &Again<'_>, logs: &Logs) {
    logs.reopen();
    let outcome = again().and_then(|config| {
        let warnings = caches::replace(site, started, &config)?;
        Ok((config, warnings))
    });
    let errors = &logs.errors;
    match outcome {
        Ok((config, warnings)) => {
            config.remarks.iter().for_each(|one| errors.warning(one));
            warnings.iter().for_each(|one| errors.warning(one));
            let has_key = |cache: &CacheSettings| !cache.secret_key_files.is_empty();
            errors.info(match config.caches.iter().any(has_key) {
                true => "the secret key was read again",
                false => "the configuration was read again",
            });
        }
        Err(error) => errors.error(format_args!("{error:#}; what was read before stays in use")),
    }
}

fn read_certificate(tls: &Tls, names: &Names, errors: &ErrorLog) -> anyhow::Result<TlsConfig> {
    let mut builder = TlsConfig::builder().certificate_files(&tls.certificate, &tls.key);
    if let Some(clients) = &tls.clients {
        let needed = match clients.required {
            true => ClientCertificates::Required,
            false => ClientCertificates::Optional,
        };
        builder = builder.client_authorities_file(&clients.authorities, needed);
    }
    let config = builder.build().with_context(|| {
        let (certificate, key) = (names.option("tls.certificate"), names.option("tls.key"));
        format!("cannot use TLS: set {certificate} and {key} to other files")
    })?;
    warn_of_expiry(tls, &config, errors);
    Ok(config)
}

/// Connections that are open stay open, with what they were opened with.
fn reload_certificate(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    match config.reload() {
        Ok(()) => {
            errors.info("the certificate was read again");
            warn_of_expiry(tls, config, errors);
        }
        Err(error) => {
            let error = anyhow::Error::new(error);
            errors.error(format_args!(
                "{error:#}; the certificate read before stays in use"
            ));
        }
    }
}

fn warn_of_expiry(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    let now = SystemTime::now();
    if config.certificates().iter().any(|one| one.is_expired(now)) {
        errors.warning(format_args!(
            "the certificate in {:?} has expired: clients will refuse it",
            tls.certificate
        ));
    }
}

/// GC leases; by default without a warning if there is no daemon.
fn gc_lease(config: &Configuration) -> Option<LeaseConfig> {
    let time = config
        .gc_lease
        .map_or(Some(GcLease::TIME_DEFAULT), GcLease::time)?;
    Some(LeaseConfig {
        time,
        is_configured: config.gc_lease.is_some(),
    })
}

fn open_store(
    config: &Configuration,
    errors: &ErrorLog,
) -> anyhow::Result<Box<dyn samovar_store::Store>> {
    let settings = Settings::from_process()?;
    let text = config
        .store
        .as_deref()
        .or(settings.remote.as_deref())
        .unwrap_or_default();
    if let Ok(uri) = StoreUri::parse(text) {
        for name in uri.unknown_parameters() {
            errors.warning(format_args!(
                "the store URI's parameter {name:?} is not understood"
            ));
        }
    }
    let store = samovar_store::open(config.store.as_deref(), &settings)?;
    if let Some(remark) = store.take_remark() {
        errors.warning(remark);
    }
    Ok(store)
}

/// How far files are trusted.
fn trust(config: &Configuration) -> Trust {
    Trust {
        is_first_hashed: config.verify == Verify::First,
        state_directory: config.state_directory.clone(),
        scrub_rate: config.scrub_rate,
    }
}
