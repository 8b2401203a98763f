//! The main thread: handles signals and upgrades, and finally drains the server.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use samovar_cache::Site;
use samovar_http::Server;
use samovar_text::counted;

use super::observer::Logs;
use super::reload::Again;
use super::start::Serving;
use super::upgrade::{Event, Successor};
use crate::log::ErrorLog;
use crate::notify;
use crate::signals::Signal;

/// Time that requests in progress get after TERM.
pub const STOP_TIME: Duration = Duration::from_secs(10);

/// The same for a service whose sockets are not the service manager's. The manager may be about to
/// start it again, and until then clients are refused. Nix repeats a refused request for 4.6 s, so
/// this leaves time for the start. A download that is aborted is repeated, too.
const RESTART_TIME: Duration = Duration::from_secs(2);

/// Minimum duration of a request that is named after the drain.
const LEFT_BEHIND_TIME: Duration = Duration::from_secs(1);

/// Time that requests in progress get after QUIT or an upgrade.
const DRAIN_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The reason why a server has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// A signal stopped it.
    Stopped,
    /// An upgrade replaced it.
    TakenOver,
}

/// Handles events until the server must end, then drains it.
pub(super) fn wait(serving: &Serving<'_>, again: &Again<'_>) -> Ended {
    let (server, events) = (&serving.server, &serving.events);
    let logs = &*serving.bound.prepared.logs;
    let errors = &logs.errors;
    // If the service manager owns the sockets, clients wait while it restarts the service.
    let stop_time = match serving.bound.is_main && !serving.bound.bound.is_managed {
        true => RESTART_TIME,
        false => STOP_TIME,
    };
    let mut successor = None;
    let (time, ended) = loop {
        match events.recv() {
            Ok(Event::Signal(Signal::Reload)) => {
                notify::reloading();
                serving.reload(again);
                notify::ready();
            }
            Ok(Event::Signal(Signal::ReopenLogs)) => {
                logs.reopen();
                logs.say_counts();
            }
            Ok(Event::Signal(Signal::ChangeWorkers)) => {
                errors.info("TTIN and TTOU are ignored: the number of workers is set at start");
            }
            Ok(Event::Signal(Signal::Upgrade)) => {
                if successor.is_none() {
                    successor = begin_upgrade(serving, errors);
                }
            }
            Ok(Event::Successor(outcome)) => {
                if let Some(new) = successor.take()
                    && has_taken_over(new, outcome, serving)
                {
                    // The new process needs the listeners of the admin server now.
                    if let Some(admin) = &serving.admin {
                        admin.leave();
                    }
                    break (DRAIN_TIME, Ended::TakenOver);
                }
            }
            Ok(Event::Signal(Signal::Drain)) => break (DRAIN_TIME, Ended::Stopped),
            // An error means that the signal thread has ended. Stop now: no signal could stop the
            // server later.
            Ok(Event::Signal(Signal::Stop)) | Err(_) => break (stop_time, Ended::Stopped),
        }
    };
    if ended == Ended::Stopped {
        if let Some(mut new) = successor {
            new.end();
        }
        // Notify before the drain: from here on the manager's stop timeout runs, and its watchdog
        // is off.
        notify::stopping();
        errors.info("stopping: finishing requests in progress, accepting no connections");
    }
    server.service().stop_waiting();
    drain(server, events, (time, stop_time), logs);
    ended
}

fn begin_upgrade(serving: &Serving<'_>, errors: &ErrorLog) -> Option<Successor> {
    let sender = serving.sender.clone();
    let bound = &serving.bound;
    let state = (bound.bound.is_managed, bound.is_main);
    let config = bound.prepared.config;
    match Successor::start(&serving.server, &serving.kinds, state, config, sender) {
        Ok(new) => {
            errors.info(format_args!("upgrade: starting process {}", new.pid()));
            Some(new)
        }
        Err(error) => {
            errors.error(format_args!("{error:#}; this process continues to serve"));
            None
        }
    }
}

fn has_taken_over(mut new: Successor, outcome: io::Result<bool>, serving: &Serving<'_>) -> bool {
    let errors = &serving.bound.prepared.logs.errors;
    if matches!(outcome, Ok(true)) {
        notify::main_process(new.pid());
        errors.info(format_args!(
            "process {} has taken over; finishing requests in progress",
            new.pid()
        ));
        return true;
    }
    let how = match outcome {
        Ok(_) => new.fail(),
        // The new process did not report in time, or the transfer of the sockets failed: kill it,
        // so that it neither serves nor writes its PID file.
        Err(_) => new.end(),
    };
    if let Some(storage) = serving.server.service().storage() {
        storage.resume_mirror();
    }
    errors.error(format_args!(
        "the new executable did not start ({how}); this process continues to serve: fix the error \
         and send USR2 again"
    ));
    false
}

/// Drains the server for `time`, or for `stop_time` after TERM.
fn drain(
    server: &Arc<Server<Site>>,
    events: &Receiver<Event>,
    (time, stop_time): (Duration, Duration),
    logs: &Logs,
) {
    let draining = Arc::clone(server);
    let drain = std::thread::spawn(move || draining.drain(time));
    let mut stops = u32::from(time == stop_time);
    while !drain.is_finished() {
        match events.recv_timeout(Duration::from_millis(20)) {
            Ok(Event::Signal(Signal::Stop)) => {
                stops += 1;
                let time = if stops > 1 { Duration::ZERO } else { stop_time };
                let hurried = Arc::clone(server);
                // This only shortens the deadline of the drain in the thread above.
                std::thread::spawn(move || hurried.drain(time));
            }
            Ok(Event::Signal(Signal::Reload | Signal::ReopenLogs)) => logs.reopen(),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let count = server.connection_count();
    if count > 0 {
        logs.errors
            .warning(format_args!("aborted {}", counted(count, "connection")));
    }
    for left in server.unfinished() {
        let duration = left.duration;
        if duration >= LEFT_BEHIND_TIME {
            logs.errors.warning(format_args!(
                "request not finished: {}, in progress for {} s",
                left.request,
                duration.as_secs()
            ));
        }
    }
    logs.say_counts();
}
