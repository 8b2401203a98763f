//! Entry points for the fuzz targets in `fuzz/`.

use std::net::IpAddr;

use samovar_http::Peer;

use super::address::{Networks, Proxies};
use super::config::Forwarded;
use super::credentials::Credentials;
use super::secret::Secret;
use super::tokens::Tokens;
use super::users::Users;

/// User name and password of HTTP Basic.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Parses an `Authorization` value into a pair or a token; `None` if it is invalid.
#[must_use]
pub fn credentials(value: &[u8]) -> Option<Result<Pair, Vec<u8>>> {
    Some(match Credentials::parse(value)? {
        Credentials::Basic(basic) => Ok((basic.user().to_vec(), basic.password().to_vec())),
        Credentials::Bearer(token) => Err(token.to_vec()),
    })
}

/// Returns the client's address, or `None` if it is unknown. The request comes from a proxy at
/// 10.0.0.1, and 10.0.0.0/8 are trusted proxies.
#[must_use]
pub fn forwarded(values: &[&[u8]], is_rfc7239: bool) -> Option<IpAddr> {
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

/// Returns the number of users or tokens in a file.
///
/// # Errors
///
/// The number of the first wrong line, starting at 1.
pub fn secrets(text: &str, is_users: bool) -> Result<usize, usize> {
    let count = match is_users {
        true => Users::parse(text).map(|users| users.len()),
        false => match Secret::new() {
            Ok(secret) => Tokens::parse(&secret, text).map(|tokens| tokens.len()),
            Err(_) => Ok(0),
        },
    };
    count.map_err(|(line, _)| line)
}
