//! `samovar doctor`: whether a server can serve well, and does, and whether a client will use it;
//! with `--verify`, whether what is in a store is what is registered.

mod client;
mod round_trip;
mod verify;

use std::io::Write;
use std::path::PathBuf;

use clap::ArgMatches;
use samovar_nix::PublicKey;
use samovar_server::checkup::{Findings, Verdict, examine};
use samovar_server::config::Configuration;
use samovar_server::listener::{Host, ListenSpec};

use crate::command::Outcome;
use crate::remote::without_logins;
use crate::serve;

pub(crate) use verify::Verification;

/// Looks at the set-up that the command line names, and prints what it finds.
///
/// # Errors
///
/// If the configuration means nothing, or `out` cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let config = serve::configuration(&serve::settings(matches)?)?;
    let mut findings = Findings::default();
    // Before the process becomes another user, who may not read this.
    let client: Option<&PathBuf> = matches.get_one("client-config");
    let client = client.map(|path| client::Client::read(path, &mut findings));
    let examined = examine(&config, &mut findings);
    let url = matches.get_one::<String>("url").cloned();
    let url = url.or_else(|| url_of(&config));
    match &url {
        Some(url) => round_trip::make(url, &examined, &mut findings),
        None => findings.doubtful(
            "round trip",
            "the server listens on unix sockets only: nothing was asked of it",
            "--url URL, of the proxy before it",
        ),
    }
    if let (Some(Some(client)), Some(url)) = (client, &url) {
        client.examine(url, &examined.keys, &mut findings);
    }
    print(&findings, out)?;
    Ok(match findings.worst() {
        Verdict::Fine | Verdict::Doubtful => Outcome::Complete,
        Verdict::Broken => Outcome::Incomplete,
    })
}

fn print(findings: &Findings, out: &mut dyn Write) -> std::io::Result<()> {
    for finding in &findings.0 {
        let word = match finding.verdict {
            Verdict::Fine => "ok    ",
            Verdict::Doubtful => "doubt ",
            Verdict::Broken => "BROKEN",
        };
        writeln!(
            out,
            "{word} {}: {}",
            finding.subject,
            without_logins(&finding.text)
        )?;
        if !finding.mend.is_empty() {
            writeln!(out, "       mend: {}", without_logins(&finding.mend))?;
        }
    }
    let count = |verdict| {
        let found = findings.0.iter().filter(|one| one.verdict == verdict);
        found.count()
    };
    let (broken, doubtful) = (count(Verdict::Broken), count(Verdict::Doubtful));
    writeln!(out, "{broken} broken, {doubtful} in doubt")
}

/// Where this machine reaches the first cache of a server with this configuration.
fn url_of(config: &Configuration) -> Option<String> {
    let prefix = config.caches.first().map_or("", |cache| &*cache.prefix);
    let scheme = if config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    config.listeners.iter().find_map(|spec| {
        let ListenSpec::Tcp { host, port } = spec else {
            return None;
        };
        let host = match host {
            Host::Address(address) if !address.is_unspecified() => match address {
                std::net::IpAddr::V6(address) => format!("[{address}]"),
                std::net::IpAddr::V4(address) => address.to_string(),
            },
            Host::Name(name) => name.clone(),
            Host::PreferIpv6 | Host::OnlyIpv6 => "[::1]".to_owned(),
            _ => "127.0.0.1".to_owned(),
        };
        (*port != 0).then(|| format!("{scheme}://{host}:{port}{prefix}"))
    })
}

/// The form in which clients are given keys.
fn texts(keys: &[PublicKey]) -> String {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    keys.join(" ")
}
