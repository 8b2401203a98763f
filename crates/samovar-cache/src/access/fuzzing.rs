//! Entry points for the fuzz targets in `fuzz/`.

use std::net::IpAddr;

use samovar_http::Peer;

use super::address::{Networks, Proxies};
use super::config::Forwarded;
use super::credentials::Credentials;
use super::secret::Secret;
use super::secret_file::lines;
use super::tokens::Tokens;
use super::users::Users;
use super::{AccessError, LineProblem};
use crate::fuzzing::Pair;

pub(crate) fn credentials(value: &[u8]) -> Option<Result<Pair, Vec<u8>>> {
    match Credentials::parse(value) {
        Credentials::Basic(basic) => Some(Ok((basic.user().to_vec(), basic.password().to_vec()))),
        Credentials::Bearer(token) => Some(Err(token.to_vec())),
        Credentials::None | Credentials::Malformed => None,
    }
}

pub(crate) fn forwarded(values: &[&[u8]], is_rfc7239: bool) -> Option<IpAddr> {
    let header = match is_rfc7239 {
        true => Forwarded::Forwarded,
        false => Forwarded::XForwardedFor,
    };
    let proxies = Proxies {
        networks: Networks::parse(&["10.0.0.0/8".to_owned()]).unwrap_or_default(),
        unix: false,
        header,
    };
    let peer = Peer::Tcp(([10, 0, 0, 1], 1).into());
    let fields = values.iter().map(|value| (header.name(), *value));
    proxies.client(peer, fields)
}

pub(crate) fn secrets(text: &str, is_users: bool) -> Result<usize, usize> {
    let mut outcome = Ok(());
    let mut read = |no_colon, take: super::tokens::Take<'_>| {
        outcome = lines(text, no_colon, take);
        Ok::<_, AccessError>(())
    };
    let count = match is_users {
        true => Users::with(|take| read(LineProblem::NoUser, take)).map(|users| users.len()),
        false => match Secret::new() {
            Ok(secret) => Tokens::with(&secret, |take| read(LineProblem::NoToken, take))
                .map(|tokens| tokens.len()),
            Err(_) => Ok(0),
        },
    };
    match (outcome, count) {
        (Ok(()), Ok(count)) => Ok(count),
        (Err((line, _)), _) => Err(line),
        (Ok(()), Err(_)) => Err(0),
    }
}
