//! Runs a server from start to exit.
//!
//! # Order
//!
//! Steps that can fail come first, and fail with one line: configuration, keys, sockets. Then the
//! process switches its user, opens the store, catches signals, and serves. `start.rs` has a type
//! for each stage, so that the compiler enforces this order. `signals.rs` describes the effects of
//! signals.

mod admin;
mod bind;
mod caches;
mod counts;
mod events;
mod nar_cache;
mod node;
mod observer;
mod outages;
mod reload;
mod rereading;
mod start;
mod throttle;
mod unencrypted;
mod upgrade;

use std::io;
use std::path::Path;

use anyhow::Context as _;
use samovar_cache::Upstreams;

use crate::config::Configuration;
use crate::daemon::{Background, Identity};
use crate::log::{ErrorLog, Level};
pub use caches::{PolicyRootFault, retentions, root_faults, signing, unserved};
use events::Ended;
pub use events::STOP_TIME;
pub use reload::{Again, Applied};
pub(crate) use reload::{certificates, open_keys, tls_fault, with_files};
pub(crate) use rereading::{unreadable, unwritable};
pub(crate) use start::store_uri;
use start::{FLUSH_TIME, Prepared, open_store};
pub(crate) use unencrypted::configured_unencrypted;
pub use upgrade::{Predecessor, START_TIME};

/// Serves until a signal stops the server. A reload calls `again` to read the configuration.
///
/// # Errors
///
/// The reason why the server cannot start: one line with the cause and the remedy.
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
    let file = config.error_log.as_deref();
    let identity = Identity::find(config.user.as_deref(), config.group.as_deref())?;
    let made = file.map_or(Ok(()), |path| make_log(path, identity.as_ref()));
    let opened = made.and_then(|()| ErrorLog::open(config.names.program, file, verbosity));
    let errors = opened.with_context(|| {
        let path = file.unwrap_or(Path::new("-"));
        format!("cannot open the error log {path:?}")
    })?;
    for remark in &config.remarks {
        errors.warning(remark);
    }
    let outcome = serve(config, identity, again, background, predecessor, &errors);
    // The caller prints the error. The standard error of an upgrade may be one that nobody reads.
    if let (Err(error), Some(_)) = (&outcome, file) {
        errors.error(format_args!("{error:#}"));
    }
    errors.flush(FLUSH_TIME);
    outcome
}

/// Creates a log file for the user of the server, who opens it again at a reload, and in the next
/// process of an upgrade.
fn make_log(path: &Path, identity: Option<&Identity>) -> io::Result<()> {
    identity.map_or(Ok(()), |identity| identity.create(path))
}

fn serve(
    config: &Configuration,
    identity: Option<Identity>,
    again: &Again<'_>,
    background: Option<Background>,
    predecessor: Option<Predecessor>,
    errors: &ErrorLog,
) -> anyhow::Result<()> {
    let bound = Prepared::read(config, identity, errors)?.bind(predecessor)?;
    let mut serving = bound.start()?;
    serving.announce(background)?;
    if events::wait(&serving, again) == Ended::TakenOver {
        serving.leave_socket_files();
    }
    serving.exit();
    Ok(())
}

/// Checks a configuration without side effects: reads its keys and certificate and opens its store.
///
/// # Errors
///
/// Any error that would prevent a start.
pub fn check(config: &Configuration) -> anyhow::Result<()> {
    let errors = ErrorLog::open(config.names.program, None, Level::Warning)
        .context("cannot write to standard error")?;
    let outcome = check_parts(config, &errors);
    errors.flush(FLUSH_TIME);
    outcome
}

fn check_parts(config: &Configuration, errors: &ErrorLog) -> anyhow::Result<()> {
    for remark in &config.remarks {
        errors.warning(remark);
    }
    caches::read(&config.caches, errors)?;
    nar_cache::check(config)?;
    config.location()?;
    let identity = Identity::find(config.user.as_deref(), config.group.as_deref())?;
    if let Some(tls) = &config.tls {
        reload::read_certificate(tls, &config.names, errors)?;
    }
    // The service manager may pass other sockets than the default.
    if config.listen_given
        && let Some((fault, fix)) = configured_unencrypted(config)
    {
        errors.warning(format_args!("{fault}; {fix}"));
    }
    let store = open_store(config, errors)?;
    for fault in root_faults(&config.caches, &*store) {
        errors.warning(format_args!("{}; {}", fault.text, fault.fix));
    }
    // Last, because a start also reads all files before. An ordinary user cannot check this.
    if let Some(identity) = identity
        && identity.assume().is_ok()
    {
        warn_of_unreadable(config, errors);
    }
    // A start, too, reads the logins for upstreams as the user of the server.
    Upstreams::check(&config.upstreams)?;
    Ok(())
}

/// Reports files that the present user cannot open again.
fn warn_of_unreadable(config: &Configuration, errors: &ErrorLog) {
    for (fault, fix) in unreadable(config).into_iter().chain(unwritable(config)) {
        errors.warning(format_args!("{fault}; {fix}"));
    }
}
