//! [`Claims`]: what a verified ID token says about its holder.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The claims of a verified token.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims(pub(crate) Map<String, Value>);

impl Claims {
    /// Returns the value of a claim as text: a text, an integer, `true` or `false`. Returns `None`
    /// if the token has no such claim, or its value is of another type: conditions on lists and
    /// tables would have several meanings.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.0.get(name)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            Value::Bool(is_true) => Some(Cow::Owned(is_true.to_string())),
            Value::Number(number) if number.is_i64() || number.is_u64() => {
                Some(Cow::Owned(number.to_string()))
            }
            _ => None,
        }
    }

    /// Returns whether the token has a claim with this name, of any type.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a time in seconds since 1970 (`NumericDate`); its fraction is cut off. `Err`: the
    /// claim is no time.
    pub(crate) fn time(&self, name: &str) -> Result<Option<i64>, ()> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        let Value::Number(number) = value else {
            return Err(());
        };
        if let Some(seconds) = number.as_i64() {
            return Ok(Some(seconds));
        }
        let seconds = number.as_f64().ok_or(())?;
        // Exact in a double, and far in the future.
        if !(0.0..9e15).contains(&seconds) {
            return Err(());
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "was compared with the limits"
        )]
        Ok(Some(seconds as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(text: &str) -> Claims {
        Claims(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn texts_of_claims() {
        let claims = claims(
            r#"{"a": "x", "b": 12, "c": true, "d": 1.5, "e": ["x"], "f": {"x": "x"}, "g": null}"#,
        );
        for (name, expected) in [("a", "x"), ("b", "12"), ("c", "true")] {
            assert_eq!(claims.text(name).as_deref(), Some(expected), "{name}");
        }
        for name in ["d", "e", "f", "g", "h", "f.x", ""] {
            assert_eq!(claims.text(name), None, "{name}");
        }
        assert!(claims.has("g") && !claims.has("h"));
    }

    #[test]
    fn times_of_claims() {
        let claims = claims(r#"{"a": 5, "b": 5.9, "c": "5", "d": -1, "e": 1e300, "f": null}"#);
        assert_eq!(claims.time("a"), Ok(Some(5)));
        assert_eq!(claims.time("b"), Ok(Some(5)));
        assert_eq!(claims.time("d"), Ok(Some(-1)));
        assert_eq!(claims.time("x"), Ok(None));
        for name in ["c", "e", "f"] {
            assert_eq!(claims.time(name), Err(()), "{name}");
        }
    }
}
