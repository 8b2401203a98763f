//! Keys of objects, below the prefix of a bucket.

use crate::error::Fault;

/// Maximum length of a key in S3, in bytes, its prefix included.
const KEY_LEN_MAX: usize = 1024;

/// Returns the whole key of the object that is called `key` below `prefix`.
///
/// Refuses what a URL cannot express: an empty segment, `.` and `..` would be resolved like paths
/// of files, and name another object. Control characters are refused, because XML cannot express
/// them.
pub(crate) fn absolute(prefix: &str, key: &str) -> Result<String, Fault> {
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
    let is_good = key.split('/').all(is_segment)
        && !key.chars().any(char::is_control)
        && prefix.len() + key.len() <= KEY_LEN_MAX;
    if is_good {
        Ok(format!("{prefix}{key}"))
    } else {
        Err(Fault::Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_below_the_prefix() {
        assert_eq!(absolute("a/", "nar/x ü").unwrap(), "a/nar/x ü");
        let longest = "x".repeat(KEY_LEN_MAX - 2);
        assert!(absolute("a/", &longest).is_ok());
        assert!(absolute("a/", &format!("{longest}y")).is_err());
    }

    #[test]
    fn what_names_another_object_is_refused() {
        for key in [
            "", "/", "a//b", "a/", "/a", "..", "a/../b", "./a", "a\nb", "a\0",
        ] {
            assert!(matches!(absolute("p/", key), Err(Fault::Key)), "{key:?}");
        }
    }
}
