//! From when to when a certificate is valid: the one thing an operator wants to be told of a
//! certificate that rustls has no words for.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use super::der::{SEQUENCE, after_issuer, element};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The validity of a DER certificate; `None` if it is not understood.
///
/// # Source
///
/// RFC 5280, section 4.1: `Certificate` holds `TBSCertificate`, which holds version, serial number,
/// signature algorithm, issuer and then validity.
pub(super) fn validity(certificate: &[u8]) -> Option<RangeInclusive<SystemTime>> {
    let fields = after_issuer(certificate)?;
    let (_, times, _) = element(fields, &[SEQUENCE])?;
    let (tag, not_before, rest) = element(times, &[UTC_TIME, GENERALIZED_TIME])?;
    let not_before = time(tag, not_before)?;
    let (tag, not_after, _) = element(rest, &[UTC_TIME, GENERALIZED_TIME])?;
    Some(not_before..=time(tag, not_after)?)
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, the only forms certificates may use (RFC 5280, 4.1.2.5).
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |digits: &[u8]| {
        digits
            .iter()
            .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
    };
    let (year, rest) = if tag == UTC_TIME {
        let (year, rest) = digits.split_at_checked(2)?;
        // RFC 5280, 4.1.2.5.1: from 50 on it is the last century.
        let year = number(year);
        (if year < 50 { 2000 + year } else { 1900 + year }, rest)
    } else {
        let (year, rest) = digits.split_at_checked(4)?;
        (number(year), rest)
    };
    let [month, day, hour, minute, second] =
        <[_; 5]>::try_from(rest.chunks(2).map(number).collect::<Vec<_>>()).ok()?;
    if rest.len() != 10 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = hour * 3600 + minute * 60 + second;
    let days = days_before(year, month) + day - 1;
    // Before 1970 is long expired, however long.
    let since_epoch = days.saturating_sub(days_before(1970, 1)) * 86_400 + seconds;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since_epoch))
}

/// Days from the year 0 to the first of a month.
fn days_before(year: u64, month: u64) -> u64 {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Leap days of the years before this one; the year 0 has one.
    let past = year.saturating_sub(1);
    let leap_days = if year == 0 {
        0
    } else {
        past / 4 - past / 100 + past / 400 + 1
    };
    let index = usize::try_from(month - 1).unwrap_or(0);
    let in_year = BEFORE_MONTH.get(index).copied().unwrap_or(0);
    year * 365 + leap_days + in_year + u64::from(is_leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tag: u8, text: &[u8], expected: Option<u64>) {
        let seconds = time(tag, text).map(|time| {
            time.duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs()
        });
        assert_eq!(seconds, expected, "{}", text.escape_ascii());
    }

    #[test]
    fn times_of_certificates() {
        check(UTC_TIME, b"700101000000Z", Some(0));
        check(UTC_TIME, b"000229120000Z", Some(951_825_600));
        check(UTC_TIME, b"491231235959Z", Some(2_524_607_999));
        check(GENERALIZED_TIME, b"20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, b"20240301000000Z", Some(1_709_251_200));
        check(GENERALIZED_TIME, b"99991231235959Z", Some(253_402_300_799));
        check(UTC_TIME, b"700101000000", None);
        check(UTC_TIME, b"701301000000Z", None);
        check(UTC_TIME, b"7001010000Z", None);
        check(UTC_TIME, b"70010100000aZ", None);
    }

    #[test]
    fn a_certificate_says_when_it_ends() {
        let mut params = rcgen::CertificateParams::new(vec!["a.test".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 9, 9);
        params.not_after = rcgen::date_time_ymd(2060, 2, 29);
        let key = rcgen::KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap();
        let validity = validity(der.der()).unwrap();
        let seconds = |time: &SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(seconds(validity.start()).as_secs(), 999_993_600);
        assert_eq!(seconds(validity.end()).as_secs(), 2_845_238_400);
        for len in 0..200 {
            assert_eq!(super::validity(&der.der()[..len]), None);
        }
    }
}
