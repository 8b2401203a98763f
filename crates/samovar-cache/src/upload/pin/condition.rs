//! Conditions of requests about pins: `If-Match` and `If-None-Match` (RFC 9110, 13.1).
//!
//! The entity tag of a pin is the number of its newest generation in quotes.

use samovar_http::Head;
use samovar_storage::metadata::{Condition, Tags};

/// Parses the condition of a request.
///
/// # Errors
///
/// The error names the header field and the fix.
pub(super) fn of(head: Head<'_>) -> Result<Condition, String> {
    let tags =
        |name: &str, weak| {
            let lines = head.headers();
            let lines = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()));
            let lines: Vec<&[u8]> = lines.map(|(_, value)| value).collect();
            match lines.is_empty() {
            true => Ok(None),
            false => parse(&lines.join(&b","[..]), weak).map(Some).ok_or_else(|| {
                format!(
                    "{name} must be * or the number of a generation in quotes, such as \"1\""
                )
            }),
        }
        };
    Ok(Condition {
        only: tags("If-Match", Weak::MatchNothing)?,
        except: tags("If-None-Match", Weak::AreStrong)?,
    })
}

/// The treatment of weak entity tags, into which a proxy may have changed strong ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weak {
    /// A weak tag matches no generation, as RFC 9110 requires for `If-Match`.
    MatchNothing,
    /// A weak tag matches like the strong one.
    AreStrong,
}

/// Parses a list of entity tags. Tags that are no generation match nothing, and are omitted.
fn parse(text: &[u8], weak: Weak) -> Option<Tags> {
    let text = std::str::from_utf8(text).ok()?;
    if text.trim_ascii() == "*" {
        return Some(Tags::Any);
    }
    let mut tags = Vec::new();
    for tag in text.split(',').map(str::trim_ascii) {
        let strong = tag.strip_prefix("W/");
        let opaque = strong.unwrap_or(tag).strip_prefix('"')?.strip_suffix('"')?;
        if opaque.contains('"') {
            return None;
        }
        let generation: Option<i64> = opaque.parse().ok();
        // Refuse other forms of the number, such as "+1" and "01".
        let generation = generation.filter(|generation| generation.to_string() == opaque);
        let is_omitted = strong.is_some() && weak == Weak::MatchNothing;
        tags.extend(generation.filter(|_| !is_omitted));
    }
    Some(Tags::Listed(tags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_tags() {
        let strong = |text: &str| parse(text.as_bytes(), Weak::MatchNothing);
        let listed = |tags: &[i64]| Some(Tags::Listed(tags.to_vec()));
        assert_eq!(strong("*"), Some(Tags::Any));
        assert_eq!(strong("\"1\""), listed(&[1]));
        assert_eq!(strong("\"1\" , \"23\""), listed(&[1, 23]));
        for other in [
            "\"\"",
            "\"a\"",
            "\"+1\"",
            "\"01\"",
            "\"9223372036854775808\"",
            "W/\"1\"",
        ] {
            assert_eq!(strong(other), listed(&[]), "{other}");
        }
        assert_eq!(parse(b"W/\"1\"", Weak::AreStrong), listed(&[1]));
        for wrong in [
            "",
            "1",
            "\"1",
            "1\"",
            "\"",
            "\"1\"\"2\"",
            "\"1\",",
            "*, \"1\"",
            "w/\"1\"",
        ] {
            assert_eq!(strong(wrong), None, "{wrong}");
        }
    }
}
