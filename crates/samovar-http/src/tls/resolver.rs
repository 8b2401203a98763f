//! Selection of the certificate by server name (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Certificates by server name (RFC 6066, section 3).
///
/// An exact name takes precedence over a wildcard. A wildcard matches exactly one label, the
/// leftmost (RFC 9525, 6.3). The first certificate added is the default.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    certificates: Vec<Arc<CertifiedKey>>,
    /// Index in `certificates` for each exact server name.
    exact: HashMap<String, usize>,
    /// Index in `certificates` for the parent domain of each wildcard name.
    wildcard: HashMap<String, usize>,
}

/// Why no client, or not every client that a certificate is for, would get it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// The certificate has no name, and is not the default.
    NoName,
    /// Another certificate has this name: its number.
    Twice(String, usize),
}

impl Resolver {
    /// Adds a certificate for these names.
    pub(super) fn add(
        &mut self,
        certificate: CertifiedKey,
        names: &[String],
    ) -> Result<(), Unused> {
        let index = self.certificates.len();
        if names.is_empty() && index > 0 {
            return Err(Unused::NoName);
        }
        for name in names {
            let entry = match name.strip_prefix("*.") {
                Some(parent) => self.wildcard.entry(parent.to_owned()),
                None => self.exact.entry(name.clone()),
            };
            // A certificate may repeat a name.
            let owner = *entry.or_insert(index);
            if owner != index {
                return Err(Unused::Twice(name.clone(), owner));
            }
        }
        self.certificates.push(Arc::new(certificate));
        Ok(())
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

    fn key() -> CertifiedKey {
        let provider = rustls::crypto::ring::default_provider();
        let key = rcgen::KeyPair::generate().unwrap();
        let der = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let key = provider.key_provider.load_private_key(der).unwrap();
        CertifiedKey::new(Vec::new(), key)
    }

    fn add(resolver: &mut Resolver, names: &[&str]) -> Result<(), Unused> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        resolver.add(key(), &names)
    }

    fn resolver() -> Resolver {
        let mut resolver = Resolver::default();
        for names in [&["a.test", "a.test"][..], &["*.a.test"], &["b.a.test"]] {
            add(&mut resolver, names).unwrap();
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

    #[test]
    fn a_certificate_that_a_client_would_not_get_is_refused() {
        let twice = |name: &str, number| Err(Unused::Twice(name.to_owned(), number));
        for (names, expected) in [
            (&["c.test", "a.test"][..], twice("a.test", 0)),
            (&["*.a.test"], twice("*.a.test", 1)),
            (&[], Err(Unused::NoName)),
            (&["c.a.test", "*.b.a.test"], Ok(())),
        ] {
            assert_eq!(add(&mut resolver(), names), expected, "{names:?}");
        }
        assert_eq!(add(&mut Resolver::default(), &[]), Ok(()));
    }
}
