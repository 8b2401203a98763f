//! Entry points for the fuzz targets in `fuzz/`.

use std::net::IpAddr;

use samovar_http::Peer;

use super::address::{Networks, Proxies};
use super::config::Forwarded;
use super::credentials::Credentials;
use super::secret::Secret;
use super::tokens::Tokens;
use super::users::Users;
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
    let count = match is_users {
        true => Users::parse(text).map(|users| users.len()),
        false => match Secret::new() {
            Ok(secret) => Tokens::parse(&secret, text).map(|tokens| tokens.len()),
            Err(_) => Ok(0),
        },
    };
    count.map_err(|(line, _)| line)
}
