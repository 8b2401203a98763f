//! Parser of forwarding headers: no value that a client sends overrides the address that the
//! trusted proxy appends.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use samovar_cache::fuzzing::forwarded;

const REAL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

libfuzzer_sys::fuzz_target!(|value: &[u8]| {
    for (own, is_rfc7239) in [(&b"192.0.2.1"[..], false), (b"for=192.0.2.1", true)] {
        // First the proxy's address in a field line of its own, then appended to the client's line.
        assert_eq!(forwarded(&[value, own], is_rfc7239), Some(REAL));
        let joined = [value, b", ", own].concat();
        let found = forwarded(&[&joined], is_rfc7239);
        assert!(found == Some(REAL) || is_rfc7239 && found.is_none());
    }
});
