//! The warning about secrets that clients send over plain HTTP.

use std::net::IpAddr;

use crate::config::{CacheSettings, Configuration};
use crate::listener::ListenSpec;

/// Returns the fault, and its fix, if clients send passwords or tokens to one of `addresses`, where
/// the server speaks plain HTTP, and other networks may reach it. A trusted proxy is expected to
/// add TLS.
pub(super) fn unencrypted(
    config: &Configuration,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Option<(String, String)> {
    let trusts_proxy = |cache: &CacheSettings| !cache.access.trusted_proxies.is_empty();
    if config.caches.iter().any(trusts_proxy) {
        return None;
    }
    let mut accesses = config.caches.iter().map(|cache| &cache.access);
    let what = match config.storage {
        _ if accesses.clone().any(|access| access.users_file.is_some()) => "passwords",
        Some(_) => "tokens",
        None if accesses.any(|access| access.tokens_file.is_some()) => "tokens",
        None => return None,
    };
    let public = addresses.into_iter().find(is_public)?;
    let option = |name| config.names.option(name);
    Some((
        format!("{what} are sent unencrypted to {public}, which other networks may reach"),
        format!(
            "set {} and {}, or listen on 127.0.0.1 behind a proxy with TLS",
            option("tls.certificate"),
            option("tls.key")
        ),
    ))
}

/// Returns [`unencrypted`] for the addresses in the configuration.
pub(crate) fn configured_unencrypted(config: &Configuration) -> Option<(String, String)> {
    let tls = config.tls.as_ref();
    let is_plain = |spec: &&ListenSpec| tls.is_none_or(|tls| !tls.covers(spec));
    let plain = config.listeners.iter().filter(is_plain);
    unencrypted(config, plain.filter_map(ListenSpec::address))
}

/// Returns whether an address is neither one of this machine nor one of a private network. That of
/// all interfaces is public.
fn is_public(address: &IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            !(address.is_loopback() || address.is_private() || address.is_link_local())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses() {
        let is_public = |text: &str| is_public(&text.parse().expect("an address"));
        for public in [
            "0.0.0.0",
            "::",
            "192.0.2.1",
            "172.32.0.1",
            "2001:db8::1",
            "::ffff:192.0.2.1",
        ] {
            assert!(is_public(public), "{public}");
        }
        for private in [
            "127.0.0.1",
            "::1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "fd00::1",
            "fe80::1",
        ] {
            assert!(!is_public(private), "{private}");
        }
    }
}
