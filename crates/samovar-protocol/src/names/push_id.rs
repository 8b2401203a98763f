//! [`PushId`]: the identifier of a push.

use std::fmt;

/// Identifier of a push: 32 hexadecimal digits.
///
/// # Examples
///
/// ```
/// use samovar_protocol::names::PushId;
///
/// let text = "4f1b7c6d0c8e4a5f9d3e2b1a0c9d8e7f";
/// assert_eq!(PushId::parse(text).map(|id| id.to_string()).as_deref(), Some(text));
/// assert_eq!(PushId::parse(&text.to_uppercase()), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PushId(u128);

impl PushId {
    /// Creates an identifier from its number; every one is valid.
    #[must_use]
    pub const fn from_number(number: u128) -> Self {
        Self(number)
    }

    /// Parses an identifier. Returns `None` unless the text is exactly 32 lower-case hexadecimal
    /// digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = u128::from_str_radix(text, 16).ok().map(Self)?;
        // Refuse other notations of the same number, such as upper-case digits or a sign.
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for PushId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
