//! Checks the upstream caches: requests from each what the server would request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use samovar_cache::{CacheInfo, Held, Visit};
use samovar_nix::PathInfo;
use samovar_store::Store;
use samovar_text::counted;
use samovar_upstream::settings::UpstreamSettings;

use super::Findings;
use crate::config::Configuration;

const SUBJECT: &str = "upstream";

/// A greater difference between the clocks of an upstream and of this machine gets a warning.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Number of the newest paths of the store among which paths to ask for are chosen.
const NEWEST_COUNT: usize = 1000;

/// Maximum number of paths to ask an upstream for.
const SAMPLE_COUNT_MAX: usize = 8;

/// What to do about an upstream that does not answer, or answers with an error.
const DOWN_FIX: &str = "check its url, the network and that cache; until it answers, paths that no \
                        other cache has are missing here";

/// How to trust an upstream.
const KEY_FIX: &str = "correct public-keys of the upstream: the web page of a cache shows its key, \
                       and `samovar use --print URL` that of a Samovar";

/// Requests a description and a path from each upstream. Call it after the process has switched its
/// user, who reads the logins.
pub(super) fn examine(config: &Configuration, store: Option<&dyn Store>, findings: &mut Findings) {
    if config.upstreams.is_empty() {
        return;
    }
    let newest = store.and_then(|store| store.newest(None, NEWEST_COUNT).ok());
    let newest = newest.unwrap_or_default();
    for settings in &config.upstreams {
        let name = &settings.name;
        let visit = match Visit::prepare(settings) {
            Ok(visit) => visit,
            Err(fault) => {
                let fix = "correct netrc-file, or let the server's user read it; it needs the line \
                           `machine HOST login NAME password PASSWORD`";
                findings.error(SUBJECT, fault, fix);
                continue;
            }
        };
        if is_own(config, &visit) {
            findings.error(
                SUBJECT,
                format!("{name:?} is this server itself"),
                "remove the upstream, or correct its url",
            );
            continue;
        }
        if is_cache(&visit, name, store, findings)
            && let Some(store) = store
        {
            keys(&visit, settings, store, &newest, findings);
        }
    }
}

/// Returns whether the URL of an upstream is one of this server.
fn is_own(config: &Configuration, visit: &Visit) -> bool {
    let mut public = config.caches.iter().filter_map(|cache| {
        let url = cache.pages.as_ref()?.public_url.as_deref()?;
        Some(url.trim_end_matches('/'))
    });
    if public.any(|url| url == visit.url().trim_end_matches('/')) {
        return true;
    }
    let binds = config.listeners.iter().map(|spec| spec.resolve());
    let own: Vec<SocketAddr> = binds
        .filter_map(Result::ok)
        .flat_map(|bind| {
            let addresses = bind.addresses().iter();
            addresses.map(|one| one.address).collect::<Vec<_>>()
        })
        .collect();
    let addresses = visit.addresses();
    addresses.iter().any(|address| {
        own.iter().any(|own| {
            let is_any = own.ip().is_unspecified() && is_of_this_machine(address.ip());
            own.port() == address.port() && (own.ip() == address.ip() || is_any)
        })
    })
}

/// Returns whether this machine has an address. Sends nothing.
fn is_of_this_machine(address: IpAddr) -> bool {
    let unspecified: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // The kernel chooses the address itself as the source of packets to it.
    let source = || {
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    address.is_loopback() || source().is_ok_and(|source| source.ip() == address)
}

/// Requests the description of an upstream. Returns whether more is to be requested.
fn is_cache(visit: &Visit, name: &str, store: Option<&dyn Store>, findings: &mut Findings) -> bool {
    let info = match visit.info() {
        Ok(info) => info,
        Err(reason) => {
            let fault = format!("{name:?} does not answer: {reason}");
            findings.error(SUBJECT, fault, DOWN_FIX);
            return false;
        }
    };
    clock(&info, name, findings);
    let ours = store.map(|store| store.store_dir().as_str());
    let CacheInfo {
        status, store_dir, ..
    } = info;
    match (status, store_dir, ours) {
        (200, Some(theirs), Some(ours)) if theirs != ours => {
            findings.error(
                SUBJECT,
                format!("{name:?} has paths of {theirs}, but this server has those of {ours}"),
                "remove the upstream, correct its url, or set the option `store` to a store with \
                 that directory",
            );
            false
        }
        (200, Some(_), _) => {
            let time = info.time.as_millis();
            findings.ok(SUBJECT, format!("{name:?} answers after {time} ms"));
            true
        }
        (200, None, _) | (404 | 410, ..) => {
            let what = match status {
                200 => "its nix-cache-info states no StoreDir".to_owned(),
                _ => format!("it answers {status} for nix-cache-info"),
            };
            findings.warning(
                SUBJECT,
                format!("{name:?} may be no binary cache: {what}"),
                "correct its url, to which /nix-cache-info can be appended",
            );
            true
        }
        (401 | 403, ..) => {
            findings.error(
                SUBJECT,
                format!("{name:?} refuses this server: it answers {status}"),
                "set netrc-file of the upstream, or correct the login in it",
            );
            false
        }
        _ => {
            let fault = format!("{name:?} answers {status} for nix-cache-info");
            findings.error(SUBJECT, fault, DOWN_FIX);
            false
        }
    }
}

/// Compares the clock of an upstream with the clock of this machine.
fn clock(info: &CacheInfo, name: &str, findings: &mut Findings) {
    let Some((theirs, ours)) = info.clocks else {
        return;
    };
    let (difference, direction) = difference((theirs, ours));
    if difference > CLOCK_TOLERANCE {
        let minutes = counted(difference.as_secs() / 60, "minute");
        findings.warning(
            SUBJECT,
            format!("the clock of {name:?} is {minutes} {direction} of that of this machine"),
            "let NTP set the one that is wrong: timedatectl set-ntp true",
        );
    }
}

/// Returns by how much another clock differs from that of this machine, and its direction: `ahead`
/// or `behind`. `clocks`: the times of both.
pub(super) fn difference(clocks: (SystemTime, SystemTime)) -> (Duration, &'static str) {
    let (theirs, ours) = clocks;
    let later = |one: SystemTime, other: SystemTime| one.duration_since(other).unwrap_or_default();
    let (ahead, behind) = (later(theirs, ours), later(ours, theirs));
    let direction = if ahead > behind { "ahead" } else { "behind" };
    (ahead.max(behind), direction)
}

/// Requests paths of the store, until the upstream has one, and checks its signature.
fn keys(
    visit: &Visit,
    settings: &UpstreamSettings,
    store: &dyn Store,
    newest: &[PathInfo],
    findings: &mut Findings,
) {
    let (name, dir) = (&settings.name, store.store_dir());
    // What a key of the upstream has signed comes from there, other signed paths from another
    // cache, and the rest was built here. Few caches have derivations.
    let rank = |info: &&PathInfo| {
        let mut signatures = info.signatures.iter();
        let is_trusted = signatures.any(|one| {
            let mut keys = settings.public_keys.iter();
            keys.any(|key| key.name() == one.key_name())
        });
        let is_unsigned = info.signatures.is_empty();
        (!is_trusted, is_unsigned, info.path.is_derivation())
    };
    let mut samples: Vec<&PathInfo> = newest.iter().collect();
    samples.sort_by_key(rank);
    samples.truncate(SAMPLE_COUNT_MAX);
    for info in &samples {
        let path = info.path.display(dir);
        match visit.narinfo(dir, info.path.hash_part()) {
            Held::Absent => {}
            Held::Trusted => {
                let text = format!("{name:?} has {path}, with a narinfo that can be passed on");
                findings.ok(SUBJECT, text);
                return;
            }
            Held::Unusable(reason) => {
                let fault = format!("{name:?} has {path}, which cannot be passed on: {reason}");
                findings.error(SUBJECT, fault, KEY_FIX);
                return;
            }
            Held::Down(reason) => {
                let fault = format!("{name:?} does not answer for {path}: {reason}");
                findings.error(SUBJECT, fault, DOWN_FIX);
                return;
            }
        }
    }
    let tried = counted(samples.len() as u64, "path");
    findings.ok(
        SUBJECT,
        format!("the keys of {name:?} were not checked: it has none of {tried} of the store"),
    );
}
