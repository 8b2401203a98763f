//! `samovar doctor`: diagnoses the set-up of a server and its use by a client; with `--verify`,
//! verifies the files of a store.

mod client;
mod round_trip;
mod socket_unit;
mod verify;

use std::io::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, value_parser};
use samovar_nix::PublicKey;
use samovar_server::checkup::{ExaminedCache, Findings, Severity, examine};
use samovar_server::config::{self, Configuration};
use samovar_server::listener::{Host, ListenSpec};
use samovar_text::without_logins;

use crate::arguments::{option, paths, switch};
use crate::client_certificate;
use crate::outcome::Outcome;
use crate::remote::Remote;
use crate::serve;
use crate::size::counted;

use self::verify::verify_paths;

/// Defines `samovar doctor`.
pub(crate) fn command() -> Command {
    let command = Command::new("doctor")
        .about("Diagnoses the set-up of a server, or verifies the files of a store")
        .after_help(
            "Without --verify: checks keys, certificate, limits, sockets, directories, store, \
             daemon and upstreams of the server that the options or --config describe, requests a \
             path from each cache of the running server, and prints errors and warnings with \
             their fixes. \
             Exit code 0: no errors; 1: errors; 2: the command line or the configuration is \
             invalid. With --verify: prints \"damaged\" before each damaged path, with the \
             reason, and progress on standard error. Exit code 0: no path is damaged; 1: a path \
             is damaged; 2: a path cannot be verified, or the store is unavailable.",
        )
        .arg(option("url", "URL").help(
            "URL of the running server or of one of its caches [default: its first TCP listener]",
        ))
        .arg(
            option("client-config", "NIX.CONF")
                .value_parser(value_parser!(PathBuf))
                .help("Also check whether a client with this nix.conf uses and trusts the server"),
        )
        .args(client_certificate::options())
        .arg(switch("verify").help("Verify the NAR hashes of PATHs, or of all paths of the store"))
        .arg(
            option("rate", "BYTES")
                .requires("verify")
                .value_parser(rate)
                .help("Maximum read rate, in bytes per second, such as 64MiB; off for no limit"),
        )
        .arg(paths().requires("verify"));
    serve::with_options(command, |_| false)
}

/// Parses a rate in bytes per second; `None` for no limit.
fn rate(text: &str) -> Result<Option<NonZeroU64>, &'static str> {
    let rate = config::size(text).map(NonZeroU64::new);
    rate.ok_or("expected a number of bytes per second, such as 4096 or 64MiB, or off")
}

/// Runs `samovar doctor`.
///
/// # Errors
///
/// The configuration is invalid. With `--verify`: the store is unavailable.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match matches.get_flag("verify") {
        true => verify_paths(matches, out),
        false => diagnose(matches, out),
    }
}

/// Checks the set-up, and prints the findings.
fn diagnose(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut config = serve::configuration(&serve::settings(matches)?)?;
    let given: Option<&String> = matches.get_one("url");
    given.map(|url| Remote::of_folder(url)).transpose()?;
    let mut findings = Findings::default();
    findings.ok(
        "configuration",
        match serve::file(matches) {
            Some(file) => file.display().to_string(),
            None => "no file; only options and environment variables".to_owned(),
        },
    );
    // Read the client's configuration first: `examine` switches to the server's user, who may not
    // be permitted to read it.
    let client: Option<&PathBuf> = matches.get_one("client-config");
    let client = client.map(|path| client::Client::read(path, &mut findings));
    let certificate = client_certificate::of(matches)?;
    if serve::file(matches).is_some_and(|file| file == Path::new(serve::SERVICE_FILE)) {
        socket_unit::examine(&mut config, &mut findings);
    }
    let examined = examine(&config, &mut findings);
    let caches = match given {
        Some(url) => caches_at(url, &examined.caches),
        None => match server_url(&config) {
            Some(server) => caches_of(&server, &examined.caches),
            None => Vec::new(),
        },
    };
    let public = match given {
        Some(_) => Vec::new(),
        None => public_urls(&examined.caches),
    };
    if caches.is_empty() && public.is_empty() {
        findings.warning(
            "round trip",
            "not checked: the server listens on Unix sockets only",
            "give the URL of the proxy in front of it with --url",
        );
    }
    for (caches, is_public) in [(&caches, false), (&public, true)] {
        for (url, cache) in caches {
            let store = examined.store.as_deref();
            let named = (!is_public && given.is_none())
                .then(|| by_certificate(url, cache, &examined.certificate_names))
                .flatten();
            let at = round_trip::Place {
                url: named.as_ref().unwrap_or(url),
                is_public,
                origin: named.as_ref().map(|_| &**url),
                certificate: certificate.clone(),
            };
            round_trip::make(at, cache, store, &mut findings);
        }
    }
    if let Some(Some(client)) = client {
        client.examine(&[public, caches].concat(), &mut findings);
    }
    print(&findings, out)?;
    Ok(match findings.worst() {
        Severity::Ok | Severity::Warning => Outcome::Complete,
        Severity::Error => Outcome::Incomplete,
    })
}

fn print(findings: &Findings, out: &mut dyn Write) -> std::io::Result<()> {
    for finding in &findings.0 {
        let word = match finding.severity {
            Severity::Ok => "ok     ",
            Severity::Warning => "warning",
            Severity::Error => "error  ",
        };
        writeln!(
            out,
            "{word} {}: {}",
            finding.subject,
            without_logins(&finding.text)
        )?;
        if !finding.fix.is_empty() {
            writeln!(out, "        fix: {}", without_logins(&finding.fix))?;
        }
    }
    let count = |severity, one: &str| {
        let found = findings.0.iter().filter(|one| one.severity == severity);
        counted(found.count(), one)
    };
    let (errors, warnings) = (
        count(Severity::Error, "error"),
        count(Severity::Warning, "warning"),
    );
    writeln!(out, "{errors}, {warnings}")
}

/// A cache with its URL.
type CacheAt<'a> = (String, &'a ExaminedCache);

/// Returns the caches that `url` names: the only cache of the server, the one whose prefix ends the
/// URL, or all caches if it is the URL of a server with several caches.
fn caches_at<'a>(url: &str, caches: &'a [ExaminedCache]) -> Vec<CacheAt<'a>> {
    let url = url.trim_end_matches('/');
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    let is_named =
        |cache: &&ExaminedCache| !cache.prefix.is_empty() && path.ends_with(&cache.prefix);
    let mut named: Vec<_> = caches.iter().filter(is_named).collect();
    named.sort_by_key(|cache| cache.prefix.len());
    match (caches, named.last()) {
        ([only], _) => vec![(url.to_owned(), only)],
        (_, Some(named)) => vec![(url.to_owned(), named)],
        (_, None) => caches_of(url, caches),
    }
}

/// Returns the caches that have a public URL.
fn public_urls(caches: &[ExaminedCache]) -> Vec<CacheAt<'_>> {
    let public = |cache: &ExaminedCache| cache.public_url.clone();
    let at = |cache| Some((public(cache)?, cache));
    caches.iter().filter_map(at).collect()
}

/// Returns the caches of the server at `url`, which has no trailing slash.
fn caches_of<'a>(url: &str, caches: &'a [ExaminedCache]) -> Vec<CacheAt<'a>> {
    let at = |cache: &'a ExaminedCache| (format!("{url}{}", cache.prefix), cache);
    caches.iter().map(at).collect()
}

/// Returns the URL at which this machine can reach the server. Returns `None` if no listener has a
/// known TCP port.
fn server_url(config: &Configuration) -> Option<String> {
    config.listeners.iter().find_map(|spec| {
        let ListenSpec::Tcp { host, port } = spec else {
            return None;
        };
        let host = match host {
            Host::Address(address) if !address.is_unspecified() => host.to_string(),
            Host::Name(_) => host.to_string(),
            Host::PreferIpv6 | Host::OnlyIpv6 => "[::1]".to_owned(),
            _ => "127.0.0.1".to_owned(),
        };
        let scheme = match config.tls {
            Some(_) => "https",
            None => "http",
        };
        (*port != 0).then(|| format!("{scheme}://{host}:{port}"))
    })
}

/// Returns the URL of a cache on this machine, with a name that is in the certificate of the cache:
/// the host of the public URL, or the first name. Returns `None` if the certificates have no names,
/// or the server has none.
fn by_certificate(url: &str, cache: &ExaminedCache, names: &[String]) -> Option<String> {
    let public = cache.public_url.as_deref();
    let public = public.and_then(|url| Remote::parse(url).ok());
    let public = public.map(|remote| remote.host().to_ascii_lowercase());
    let is_public = |name: &&String| match (name.strip_prefix('*'), &public) {
        (Some(domain), Some(host)) => {
            let dot = host.find('.');
            dot.is_some_and(|at| host[at..] == *domain)
        }
        (None, Some(host)) => *host == **name,
        (_, None) => false,
    };
    let name = match (names.iter().find(is_public), public.as_ref()) {
        (Some(_), Some(host)) => host.clone(),
        // A wildcard stands for any one word.
        _ => names.first()?.replace('*', "samovar"),
    };
    let remote = Remote::parse(url).ok()?;
    let (host, rest) = (remote.origin(), url.strip_prefix(remote.origin()));
    let port = host.rsplit_once(':').map(|(_, port)| port)?;
    Some(format!("https://{name}:{port}{}", rest?))
}

/// Returns the public keys in the format of Nix's setting `trusted-public-keys`.
fn texts(keys: &[PublicKey]) -> String {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    keys.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        for (text, expected) in [("4096", 4096), ("10 MiB", 10 << 20), ("0", 0), ("off", 0)] {
            assert_eq!(rate(text), Ok(NonZeroU64::new(expected)), "{text}");
        }
    }
}
