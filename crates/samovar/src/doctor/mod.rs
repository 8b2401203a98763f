//! `samovar doctor`: diagnoses the set-up of a server and its use by a client; with `--verify`,
//! verifies the files of a store.

mod client;
mod round_trip;
mod verify;

use std::io::Write;
use std::path::PathBuf;

use clap::ArgMatches;
use samovar_nix::PublicKey;
use samovar_server::checkup::{Findings, Severity, examine};
use samovar_server::config::Configuration;
use samovar_server::listener::{Host, ListenSpec};

use crate::outcome::Outcome;
use crate::remote::without_logins;
use crate::serve;
use crate::size::counted;

pub(crate) use verify::verify_paths;

/// Runs `samovar doctor` without `--verify`: checks the set-up, and prints the findings.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let config = serve::configuration(&serve::settings(matches)?)?;
    let mut findings = Findings::default();
    // Read the client's configuration first: `examine` switches to the server's user, who may not
    // be permitted to read it.
    let client: Option<&PathBuf> = matches.get_one("client-config");
    let client = client.map(|path| client::Client::read(path, &mut findings));
    let examined = examine(&config, &mut findings);
    let url = matches.get_one::<String>("url").cloned();
    let url = url.or_else(|| url_of(&config));
    match &url {
        Some(url) => round_trip::make(url, &examined, &mut findings),
        None => findings.warning(
            "round trip",
            "not checked: the server listens on Unix sockets only",
            "give the URL of the proxy in front of it with --url",
        ),
    }
    if let (Some(Some(client)), Some(url)) = (client, &url) {
        client.examine(url, &examined.keys, &mut findings);
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

/// Returns the URL at which this machine can request the first cache of the configuration. Returns
/// `None` if no listener has a known TCP port.
fn url_of(config: &Configuration) -> Option<String> {
    let prefix = config.caches.first().map_or("", |cache| &*cache.prefix);
    let scheme = match config.tls {
        Some(_) => "https",
        None => "http",
    };
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
        (*port != 0).then(|| format!("{scheme}://{host}:{port}{prefix}"))
    })
}

/// Returns the public keys in the format of Nix's setting `trusted-public-keys`.
fn texts(keys: &[PublicKey]) -> String {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    keys.join(" ")
}
