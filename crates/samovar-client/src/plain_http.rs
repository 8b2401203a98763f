//! Refuses to send secrets over plain HTTP to other machines.

use std::net::IpAddr;

use anyhow::ensure;

use crate::remote::Remote;

/// Environment variable with the hosts to which credentials may be sent over plain HTTP, separated
/// by commas.
pub const PLAIN_VARIABLE: &str = "SAMOVAR_PLAIN_HTTP";

/// Refuses to send the credentials of `remote` over plain HTTP to another machine, unless
/// [`PLAIN_VARIABLE`] names it.
///
/// # Errors
///
/// They would be sent unencrypted.
pub fn check_encrypted(remote: &Remote) -> anyhow::Result<()> {
    match remote.authorization() {
        Some(_) => check_plain(remote, remote.login_source().unwrap_or("the token")),
        None => Ok(()),
    }
}

/// Refuses to send a secret as [`check_encrypted`] does. `source`: description of the secret.
///
/// # Errors
///
/// It would be sent unencrypted.
pub(crate) fn check_plain(remote: &Remote, source: &str) -> anyhow::Result<()> {
    let host = remote.host();
    if remote.is_secure() || is_loopback(host) {
        return Ok(());
    }
    let permitted = std::env::var(PLAIN_VARIABLE).unwrap_or_default();
    let mut permitted = permitted.split([',', ' ']);
    ensure!(
        permitted.any(|one| one == host),
        "{source} would be sent to {host} unencrypted, and could be read on the network: use \
         HTTPS, or permit it by {PLAIN_VARIABLE}={host}"
    );
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts() {
        for (host, expected) in [
            ("localhost", true),
            ("127.0.0.2", true),
            ("::1", true),
            ("10.0.0.1", false),
            ("localhost.example.org", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}
