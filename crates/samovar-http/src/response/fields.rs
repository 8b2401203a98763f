//! Validation of the header fields that an application sets.

use crate::proto::encode;

/// The fields that the engine writes itself.
const ENGINE_FIELDS: [&str; 4] = ["content-length", "transfer-encoding", "connection", "date"];

/// Returns whether a handler may set a field with this name.
pub(crate) fn is_settable(name: &str) -> bool {
    let is_own = |field: &&str| name.eq_ignore_ascii_case(field);
    encode::is_field_name(name) && !ENGINE_FIELDS.iter().any(is_own)
}

/// Appends a header field set by the application.
///
/// # Panics
///
/// If the name is not a token or one of [`ENGINE_FIELDS`], or the value contains a control
/// character.
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
