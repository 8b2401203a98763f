//! Names in client certificates.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{Decode, Tag, Tagged};

use crate::client::PeerName;

/// Object identifier of `id-at-commonName`.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Returns the names in a verified certificate: common name, DNS names, URIs.
pub(crate) fn peer_names(certificate: &[u8]) -> Vec<PeerName> {
    let mut names: Vec<_> = common_name(certificate).into_iter().collect();
    let der = CertificateDer::from(certificate);
    if let Ok(parsed) = webpki::EndEntityCert::try_from(&der) {
        let dns = parsed.valid_dns_names();
        names.extend(dns.map(|name| PeerName::Dns(name.to_ascii_lowercase().into())));
        let uris = parsed.valid_uri_names();
        names.extend(uris.map(|uri| PeerName::Uri(uri.into())));
    }
    names
}

/// Returns the common name of the subject; `None` if it has none or several, because the
/// certificate does not state which of several identifies the client.
///
/// # Source
///
/// RFC 5280, section 4.1.2.4.
fn common_name(certificate: &[u8]) -> Option<PeerName> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let subject = certificate.tbs_certificate().subject();
    let mut common_names = subject
        .iter()
        .filter(|attribute| attribute.oid == COMMON_NAME);
    let name = text(&common_names.next()?.value)?;
    let is_only = common_names.next().is_none();
    is_only.then(|| PeerName::CommonName(name.into()))
}

/// Returns the text of a `UTF8String`, `PrintableString` or `IA5String`; `None` for other types,
/// invalid UTF-8, or control characters.
fn text(value: &Any) -> Option<&str> {
    let is_known = matches!(
        value.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String
    );
    let text = std::str::from_utf8(value.value()).ok()?;
    (is_known && !text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_names: &[&str], alternatives: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        // Remove the common name that rcgen adds by default.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = alternatives;
        params
            .distinguished_name
            .push(DnType::OrganizationName, "CN=eve");
        for (index, name) in common_names.iter().enumerate() {
            // rcgen stores one name of each kind, so add the second one under the object identifier
            // of a common name.
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
    fn only_a_single_common_name_counts() {
        for common_names in [&[][..], &["ada", "eve"], &["ada\0.example"], &["a\nb"]] {
            let names = peer_names(&certificate(common_names, Vec::new()));
            assert_eq!(text(&names), text(&[]), "{common_names:?}");
        }
    }

    #[test]
    fn a_truncated_certificate_has_no_names() {
        let der = certificate(&["ada"], Vec::new());
        let (_, whole) = der.split_last().unwrap();
        for len in 0..whole.len() {
            let names = peer_names(&der[..len]);
            assert!(names.is_empty(), "{len}: {names:?}");
        }
    }
}
