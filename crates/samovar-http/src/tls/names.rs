//! Whose certificate a client has shown.

use rustls::pki_types::CertificateDer;

use super::der::{SEQUENCE, after_issuer, element};
use crate::head::PeerName;

const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

/// 2.5.4.3, `id-at-commonName`.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The names in a certificate that was verified.
pub(crate) fn peer_names(certificate: &[u8]) -> Vec<PeerName> {
    let common_name = common_name(certificate).map(|name| PeerName::CommonName(name.into()));
    let mut names: Vec<_> = common_name.into_iter().collect();
    let der = CertificateDer::from(certificate);
    if let Ok(parsed) = webpki::EndEntityCert::try_from(&der) {
        let dns = parsed.valid_dns_names();
        names.extend(dns.map(|name| PeerName::Dns(name.to_ascii_lowercase().into())));
        let uris = parsed.valid_uri_names();
        names.extend(uris.map(|uri| PeerName::Uri(uri.into())));
    }
    names
}

/// The common name of the subject; `None` also if there are two: which of them an authority meant
/// is anybody's guess.
///
/// # Source
///
/// RFC 5280, section 4.1.2.4: `Name` is a sequence of sets of sequences of a type and a value.
fn common_name(certificate: &[u8]) -> Option<&str> {
    let (_, _, fields) = element(after_issuer(certificate)?, &[SEQUENCE])?;
    let (_, mut subject, _) = element(fields, &[SEQUENCE])?;
    let mut found = None;
    while !subject.is_empty() {
        let (_, mut set, rest) = element(subject, &[SET])?;
        subject = rest;
        while !set.is_empty() {
            let (_, attribute, rest) = element(set, &[SEQUENCE])?;
            set = rest;
            let (_, kind, value) = element(attribute, &[OBJECT_IDENTIFIER])?;
            if kind == COMMON_NAME {
                let text = text(value)?;
                if found.replace(text).is_some() {
                    return None;
                }
            }
        }
    }
    found
}

/// A string that reads the same for everybody.
fn text(value: &[u8]) -> Option<&str> {
    let (_, bytes, _) = element(value, &[UTF8_STRING, PRINTABLE_STRING, IA5_STRING])?;
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_names: &[&str], alternatives: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        // It would have a common name already.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = alternatives;
        params
            .distinguished_name
            .push(DnType::OrganizationName, "CN=eve");
        for (index, name) in common_names.iter().enumerate() {
            // The library keeps one of each kind: the second is put in by hand, under the same
            // name.
            let kind = match index {
                0 => DnType::CommonName,
                _ => DnType::CustomDnType(vec![2, 5, 4, 3]),
            };
            params.distinguished_name.push(kind, *name);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn text(names: &[PeerName]) -> Vec<String> {
        names.iter().map(|name| format!("{name:?}")).collect()
    }

    #[test]
    fn names_by_kind() {
        let alternatives = vec![
            SanType::DnsName("Build.Example".try_into().unwrap()),
            SanType::URI("spiffe://example/ci".try_into().unwrap()),
            SanType::Rfc822Name("a@example".try_into().unwrap()),
        ];
        let names = peer_names(&certificate(&["Ada L\u{f6}v"], alternatives));
        let expected = [
            PeerName::CommonName("Ada L\u{f6}v".into()),
            PeerName::Dns("build.example".into()),
            PeerName::Uri("spiffe://example/ci".into()),
        ];
        assert_eq!(text(&names), text(&expected));
    }

    #[test]
    fn what_is_not_one_common_name_is_none() {
        for common_names in [&[][..], &["ada", "eve"], &["ada\0.example"], &["a\nb"]] {
            let names = peer_names(&certificate(common_names, Vec::new()));
            assert_eq!(text(&names), text(&[]), "{common_names:?}");
        }
    }

    #[test]
    fn what_is_cut_off_has_no_names() {
        let der = certificate(&["ada"], Vec::new());
        let (_, whole) = der.split_last().unwrap();
        for len in 0..whole.len() {
            let names = peer_names(&der[..len]);
            assert!(names.is_empty(), "{len}: {names:?}");
        }
    }
}
