//! Conditions of requests about pins: `If-Match` and `If-None-Match` (RFC 9110, 13.1).
//!
//! The entity tag of a pin is its newest generation with the lineage. The number alone is a tag of
//! that generation in any lineage.

use samovar_http::Head;
use samovar_protocol::pins::{Condition, Tags, Weak};

/// Parses the condition of a request.
///
/// # Errors
///
/// The error names the header field and the fix.
pub(super) fn of(head: Head<'_>) -> Result<Condition, String> {
    Ok(Condition {
        only: tags(head, "If-Match", Weak::MatchNothing)?,
        except: tags(head, "If-None-Match", Weak::AreStrong)?,
    })
}

fn tags(head: Head<'_>, name: &str, weak: Weak) -> Result<Option<Tags>, String> {
    let lines = head.headers();
    let lines = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()));
    let lines: Vec<&[u8]> = lines.map(|(_, value)| value).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let tags = Tags::parse(&lines.join(&b","[..]), weak);
    tags.map(Some).ok_or_else(|| {
        format!("{name} must be * or the number of a generation in quotes, such as \"1\"")
    })
}
