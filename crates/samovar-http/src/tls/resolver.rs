//! Selection of the certificate by server name (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Certificates by server name (RFC 6066, section 3).
///
/// An exact name takes precedence over a wildcard. A wildcard matches exactly one label, the
/// leftmost (RFC 9525, 6.3). If several certificates have a name, the first one added is used.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    certificates: Vec<Arc<CertifiedKey>>,
    /// Index in `certificates` for each exact server name.
    exact: HashMap<String, usize>,
    /// Index in `certificates` for the parent domain of each wildcard name.
    wildcard: HashMap<String, usize>,
}

impl Resolver {
    pub(super) fn add(&mut self, certificate: CertifiedKey, names: &[String]) {
        let index = self.certificates.len();
        self.certificates.push(Arc::new(certificate));
        for name in names {
            match name.strip_prefix("*.") {
                Some(parent) => self.wildcard.entry(parent.to_owned()).or_insert(index),
                None => self.exact.entry(name.clone()).or_insert(index),
            };
        }
    }

    fn find(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        // A client without SNI connects to an IP address or is very old: use the default
        // certificate.
        let Some(name) = name else {
            return self.certificates.first();
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = || {
            let (_, parent) = name.split_once('.')?;
            self.wildcard.get(parent)
        };
        let index = self.exact.get(&name).or_else(wildcard).unwrap_or(&0);
        self.certificates.get(*index)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(client.server_name()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver() -> Resolver {
        let provider = rustls::crypto::ring::default_provider();
        let mut resolver = Resolver::default();
        for names in [vec!["a.test"], vec!["*.a.test", "a.test"], vec!["b.a.test"]] {
            let key = rcgen::KeyPair::generate().unwrap();
            let der = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let key = provider.key_provider.load_private_key(der).unwrap();
            let names: Vec<String> = names.into_iter().map(String::from).collect();
            resolver.add(CertifiedKey::new(Vec::new(), key), &names);
        }
        resolver
    }

    fn index(resolver: &Resolver, name: Option<&str>) -> Option<usize> {
        let found = resolver.find(name)?;
        let mut all = resolver.certificates.iter();
        all.position(|certificate| Arc::ptr_eq(certificate, found))
    }

    #[test]
    fn exact_names_precede_wildcards() {
        let resolver = resolver();
        for (name, expected) in [
            (None, 0),
            (Some("a.test"), 0),
            (Some("A.Test."), 0),
            (Some("x.a.test"), 1),
            (Some("b.a.test"), 2),
            (Some("x.b.a.test"), 0),
            (Some("test"), 0),
        ] {
            assert_eq!(index(&resolver, name), Some(expected), "{name:?}");
        }
    }
}
