//! As much of DER as it takes to find something in a certificate.

pub(super) const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`, the version of a certificate.
const VERSION: u8 = 0xa0;

/// The fields of a DER certificate that stand behind the issuer: validity, subject, and so on.
///
/// # Source
///
/// RFC 5280, section 4.1: `Certificate` holds `TBSCertificate`, which holds version, serial number,
/// signature algorithm, issuer, validity and subject.
pub(super) fn after_issuer(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate, _) = element(certificate, &[SEQUENCE])?;
    let (_, mut fields, _) = element(certificate, &[SEQUENCE])?;
    if let Some((_, _, rest)) = element(fields, &[VERSION]) {
        fields = rest;
    }
    for _ in ["serialNumber", "signature", "issuer"] {
        (_, _, fields) = element(fields, &[])?;
    }
    Some(fields)
}

/// Tag, content and what follows of a DER element with one of `tags`, or with any if none is named.
pub(super) fn element<'a>(bytes: &'a [u8], tags: &[u8]) -> Option<(u8, &'a [u8], &'a [u8])> {
    let (&tag, rest) = bytes.split_first()?;
    if !tags.is_empty() && !tags.contains(&tag) {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits
                .iter()
                .fold(0, |len, &digit| len << 8 | usize::from(digit));
            (len, rest)
        }
        // Indefinite lengths are no DER, and nothing here is 4 GiB long.
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}
