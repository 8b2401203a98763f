//! Hides the logins of URLs in bytes of clients.

use std::borrow::Cow;

use samovar_text::without_logins;

/// Returns the bytes of a client without the logins of URLs in them, for the access log. Copies
/// only bytes that contain an `@`.
pub(super) fn masked(bytes: &[u8]) -> Cow<'_, [u8]> {
    match bytes.contains(&b'@') {
        true => without_logins(&String::from_utf8_lossy(bytes))
            .into_bytes()
            .into(),
        false => bytes.into(),
    }
}
