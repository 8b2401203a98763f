//! The client certificate that `samovar doctor` sends.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgMatches, value_parser};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, parse_pem};

use crate::arguments::option;
use crate::outcome::Failed;

/// Defines the options that name the certificate and its key.
pub(crate) fn options() -> [Arg; 2] {
    let file = |id, other, what| {
        option(id, "FILE")
            .value_parser(value_parser!(PathBuf))
            .requires(other)
            .help(what)
    };
    [
        file(
            "client-certificate",
            "client-key",
            "Client certificate to send to the server, in PEM",
        ),
        file(
            "client-key",
            "client-certificate",
            "Key of the client certificate, in PEM",
        ),
    ]
}

/// Reads the [`options`]. Returns `None` if they are not given.
pub(crate) fn of(matches: &ArgMatches) -> anyhow::Result<Option<ClientCert>> {
    let file = |id: &str| matches.get_one::<PathBuf>(id);
    match (file("client-certificate"), file("client-key")) {
        (Some(certificate), Some(key)) => read(certificate, key)
            .map(Some)
            .map_err(|error| Failed::Usage.because(error)),
        _ => Ok(None),
    }
}

fn read(certificate: &Path, key: &Path) -> anyhow::Result<ClientCert> {
    let pem = |file: &Path| std::fs::read(file).with_context(|| format!("cannot read {file:?}"));
    let chain: Vec<Certificate<'static>> = parse_pem(&pem(certificate)?)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    ensure!(
        !chain.is_empty(),
        "{certificate:?} holds no certificate in PEM"
    );
    let key = PrivateKey::from_pem(&pem(key)?)
        .with_context(|| format!("{key:?} holds no private key in PEM"))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}
