//! Validation of the header fields that an application sets.

use crate::proto::encode;

/// Returns whether an application may set this field: the name must be a token, and the engine must
/// not write this field itself.
pub(crate) fn is_settable(name: &str) -> bool {
    const ENGINE: [&str; 4] = ["content-length", "transfer-encoding", "connection", "date"];
    encode::is_field_name(name) && !ENGINE.iter().any(|field| name.eq_ignore_ascii_case(field))
}

/// Appends a header field set by the application.
///
/// # Panics
///
/// If the application may not set the field, or the value contains a control character.
#[track_caller]
pub(crate) fn add(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    assert!(
        is_settable(name),
        "{name:?} is not a header field a handler may set"
    );
    assert!(
        encode::is_field_value(value),
        "control character in the value of {name}"
    );
    encode::field(out, name, value);
}
