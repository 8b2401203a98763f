//! Conditions of requests about pins: `If-Match` and `If-None-Match` (RFC 9110, 13.1).
//!
//! The entity tag of a pin is its newest generation with the lineage. The number alone is a tag of
//! that generation in any lineage.

use samovar_http::Head;
use samovar_storage::metadata::{Condition, Tag, Tags};

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
pub(super) enum Weak {
    /// A weak tag matches no generation, as RFC 9110 requires for `If-Match`.
    MatchNothing,
    /// A weak tag matches like the strong one.
    AreStrong,
}

/// Parses a list of entity tags, which may have empty elements (RFC 9110, 5.6.1). Tags that are no
/// generation match nothing, and are omitted.
pub(super) fn parse(text: &[u8], weak: Weak) -> Option<Tags> {
    if text.trim_ascii() == b"*" {
        return Some(Tags::Any);
    }
    let mut tags = Vec::new();
    let mut is_empty = true;
    let mut rest = text.trim_ascii_start();
    while let Some(first) = rest.first() {
        if *first == b',' {
            rest = rest[1..].trim_ascii_start();
            continue;
        }
        let strong = rest.strip_prefix(b"W/");
        let quoted = strong.unwrap_or(rest).strip_prefix(b"\"")?;
        let end = quoted.iter().position(|byte| *byte == b'"')?;
        let (opaque, after) = (&quoted[..end], &quoted[end + 1..]);
        rest = after.trim_ascii_start();
        let is_ended = rest.first().is_none_or(|next| *next == b',');
        if !is_ended || opaque.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return None;
        }
        is_empty = false;
        let is_omitted = strong.is_some() && weak == Weak::MatchNothing;
        tags.extend(tag(opaque).filter(|_| !is_omitted));
    }
    (!is_empty).then_some(Tags::Listed(tags))
}

fn tag(text: &[u8]) -> Option<Tag> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_tags() {
        let strong = |text: &str| parse(text.as_bytes(), Weak::MatchNothing);
        let listed = |tags: &[i64]| {
            let number = |number: &i64| number.to_string().parse().unwrap();
            Some(Tags::Listed(tags.iter().map(number).collect()))
        };
        let exact = format!("1-{}", "0a".repeat(16));
        let expected = vec![exact.parse().unwrap()];
        assert_eq!(
            strong(&format!("\"{exact}\"")),
            Some(Tags::Listed(expected))
        );
        assert_eq!(strong("*"), Some(Tags::Any));
        assert_eq!(strong("\"1\""), listed(&[1]));
        for list in ["\"1\" , \"23\"", ",\"1\",, \t,\"a,b\",\"23\" ,"] {
            assert_eq!(strong(list), listed(&[1, 23]), "{list}");
        }
        assert_eq!(parse(b"\"\xff\"", Weak::AreStrong), listed(&[]));
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
            "\"1\" 2",
            "\"a b\"",
            ",",
            "*, \"1\"",
            "\"1\", *",
            "w/\"1\"",
        ] {
            assert_eq!(strong(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn written_lists_are_parsed(
            generations in prop::collection::vec((1_i64.., any::<bool>()), 1..6),
            space in "[ \t]{0,2}",
        ) {
            let tag = |(number, is_weak): &(i64, bool)| {
                format!("{}\"{number}\"", if *is_weak { "W/" } else { "" })
            };
            let tags: Vec<String> = generations.iter().map(tag).collect();
            let text = tags.join(&format!("{space},{space}"));
            let numbers = |weak: bool| {
                let kept = generations.iter().filter(|(_, is_weak)| weak || !is_weak);
                let tag = |(number, _): &(i64, bool)| number.to_string().parse().unwrap();
                Some(Tags::Listed(kept.map(tag).collect()))
            };
            prop_assert_eq!(parse(text.as_bytes(), Weak::AreStrong), numbers(true));
            prop_assert_eq!(parse(text.as_bytes(), Weak::MatchNothing), numbers(false));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[*W/\"0-9, -]{0,20}") {
            let strong = parse(text.as_bytes(), Weak::MatchNothing);
            prop_assert_eq!(parse(text.as_bytes(), Weak::AreStrong).is_some(), strong.is_some());
        }
    }
}
