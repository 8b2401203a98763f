//! Clients that request narinfos as Nix does.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::http::Client;
use crate::store::hash_part;

/// Number of connections of Nix.
const CONNECTION_COUNT: usize = 25;

#[derive(Default)]
struct State {
    queue: VecDeque<String>,
    seen: HashSet<String>,
    active_count: usize,
    error: Option<anyhow::Error>,
}

/// Requests the narinfos of a closure, each as soon as a narinfo refers to it. Returns the time,
/// and the number of narinfos.
pub(super) fn closure(server: SocketAddr, top: &str) -> Result<(Duration, usize)> {
    let first = hash_part(top).to_owned();
    let state = Mutex::new(State {
        queue: VecDeque::from([first.clone()]),
        seen: HashSet::from([first]),
        ..State::default()
    });
    let changed = Condvar::new();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CONNECTION_COUNT {
            scope.spawn(|| {
                let mut client = Client::new(server);
                while let Some(name) = next(&state, &changed) {
                    let narinfo = narinfo(&mut client, &name);
                    let mut state = lock(&state);
                    state.active_count -= 1;
                    match narinfo {
                        Ok(text) => {
                            for reference in references(&text) {
                                if state.seen.insert(reference.to_owned()) {
                                    state.queue.push_back(reference.to_owned());
                                }
                            }
                        }
                        Err(error) => state.error = Some(error),
                    }
                    changed.notify_all();
                }
            });
        }
    });
    let time = started.elapsed();
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some(error) => Err(error),
        None => Ok((time, state.seen.len())),
    }
}

fn next(state: &Mutex<State>, changed: &Condvar) -> Option<String> {
    let waits = |state: &mut State| {
        state.queue.is_empty() && state.active_count > 0 && state.error.is_none()
    };
    let state = changed.wait_while(lock(state), waits);
    let mut state = state.unwrap_or_else(PoisonError::into_inner);
    if state.error.is_some() {
        return None;
    }
    let name = state.queue.pop_front()?;
    state.active_count += 1;
    Some(name)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the narinfo of a path, which the server must have. `name`: the hash part.
pub(super) fn narinfo(client: &mut Client, name: &str) -> Result<String> {
    let mut body = Vec::new();
    let target = format!("/{name}.narinfo");
    let answer = client.get(&target, |piece| body.extend_from_slice(piece))?;
    let status = answer.status;
    ensure!(status == 200, "{target} gets {status}");
    String::from_utf8(body).context("a narinfo is a text")
}

fn references(narinfo: &str) -> impl Iterator<Item = &str> {
    let line = narinfo
        .lines()
        .find_map(|line| line.strip_prefix("References: "));
    line.into_iter()
        .flat_map(str::split_whitespace)
        .map(hash_part)
}
