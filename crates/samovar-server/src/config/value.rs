//! Parses values of command-line options by starman's rules.

use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

use samovar_cache::normal_prefix;

use super::{GC_LEASE_TIME_MIN, unit};

/// Maximum time, seconds: a hundred years. Longer times are reduced to this.
const SECONDS_MAX: f64 = 3_155_760_000.0;

/// Parses a whole number that fits `T`; `None` for any other text.
pub fn whole<T: FromStr>(text: &OsStr) -> Option<T> {
    text.to_str()?.trim().parse().ok()
}

/// Parses a count. Numbers above `u64::MAX` become `u64::MAX`. Returns `None` for any other text.
pub fn count(text: &OsStr) -> Option<u64> {
    let digits = text.to_str()?.trim();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// Parses a number of bytes: a count, or a number with a unit, as in `64 MiB`.
pub fn size(text: &OsStr) -> Option<u64> {
    count(text).or_else(|| unit::size(text.to_str()?))
}

/// Parses a time: seconds with an optional fraction, as starman passes to `select`, or a number
/// with a unit, as in `10 min`.
pub fn seconds(text: &OsStr) -> Option<Duration> {
    let text = text.to_str()?.trim();
    let Ok(seconds) = text.parse::<f64>() else {
        return unit::time(text);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return None;
    }
    Duration::try_from_secs_f64(seconds.min(SECONDS_MAX)).ok()
}

/// Parses the time of GC leases, at least one second. `off` and `0` give zero, which turns leases
/// off.
pub fn gc_lease(text: &OsStr) -> Option<Duration> {
    let time = seconds(text)?;
    (time.is_zero() || time >= GC_LEASE_TIME_MIN).then_some(time)
}

/// Parses the value of an option that is `first` or `never`. Returns whether the first NAR of each
/// path is verified; `None` for any other text.
pub fn verifies_first(text: &OsStr) -> Option<bool> {
    match text.to_str()? {
        "first" => Some(true),
        "never" => Some(false),
        _ => None,
    }
}

/// Parses a URL path and removes its trailing slashes; `Some("")` for the root. Two texts for the
/// same path give the same one.
pub fn url_prefix(text: &OsStr) -> Option<String> {
    let path = text.to_str()?.trim_end_matches('/');
    let well_formed = path.is_empty() || path.starts_with('/');
    let clean = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
    let normal = normal_prefix(path).filter(|_| well_formed && clean)?;
    let plain = normal
        .split('/')
        .all(|segment| segment != "." && segment != "..");
    plain.then_some(normal)
}

/// Parses the URL of a cache and removes its trailing slashes. Accepts only characters that need no
/// quotes in `nix.conf` and in Nix expressions, and no login, because every visitor sees the URL.
pub fn public_url(text: &str) -> Option<String> {
    let url = text.trim_end_matches('/');
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/[]%@".contains(&byte);
    let host = rest.split('/').next().unwrap_or_default();
    (!host.is_empty() && !host.contains('@') && rest.bytes().all(plain)).then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_urls() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(public_url(text).as_deref(), expected, "{text}");
        };
        check("https://a.example/", Some("https://a.example"));
        check("http://[::1]:5000/team/a", Some("http://[::1]:5000/team/a"));
        for bad in [
            "",
            "a.example",
            "https://",
            "javascript:x",
            "https://user:password@a.example",
            "https:///path",
            "http://a\"; b",
            "http://a${b}",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn counts() {
        let check = |text: &str, expected| assert_eq!(count(OsStr::new(text)), expected, "{text}");
        check("0", Some(0));
        check("+5", Some(5));
        check("99999999999999999999999", Some(u64::MAX));
        check("", None);
        check("-1", None);
        check("4x", None);
    }

    #[test]
    fn sizes() {
        let check = |text: &str, expected| assert_eq!(size(OsStr::new(text)), expected, "{text}");
        check("+5", Some(5));
        check("99999999999999999999999", Some(u64::MAX));
        check("10 MiB", Some(10 << 20));
        check("off", Some(0));
        check("5 s", None);
    }

    #[test]
    fn times() {
        let check =
            |text: &str, expected| assert_eq!(seconds(OsStr::new(text)), expected, "{text}");
        check("0", Some(Duration::ZERO));
        check("1.5", Some(Duration::from_millis(1500)));
        check("1e99", Some(Duration::from_secs(3_155_760_000)));
        check("inf", Some(Duration::from_secs(3_155_760_000)));
        check("-1", None);
        check("nan", None);
        check("5s", Some(Duration::from_secs(5)));
        check("10 min", Some(Duration::from_secs(600)));
        check("off", Some(Duration::ZERO));
        check("5 fortnights", None);
    }

    #[test]
    fn prefixes() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(url_prefix(OsStr::new(text)).as_deref(), expected, "{text}");
        };
        check("/cache", Some("/cache"));
        check("/a/b/", Some("/a/b"));
        check("/", Some(""));
        check("cache", None);
        check("/a/../b", None);
        check("/a?b", None);
        check("/a b", None);
        check("/te%61m/%c3%a4", Some("/team/%C3%A4"));
        check("/a/%2e%2e/b", None);
        check("/a%2Fb", None);
        check("/a%", None);
        check("http://host/x", None);
    }
}
