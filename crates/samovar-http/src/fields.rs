//! Which header fields an application may set.

use crate::proto::encode;

/// Whether an application may set this field: a token, and not one that frames the message.
pub(crate) fn is_settable(name: &str) -> bool {
    const ENGINE: [&str; 4] = ["content-length", "transfer-encoding", "connection", "date"];
    encode::is_field_name(name) && !ENGINE.iter().any(|field| name.eq_ignore_ascii_case(field))
}
