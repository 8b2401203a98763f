//! Decoder of URL queries and HTML forms.

/// Name-value pairs of a decoded query or form, in the order sent. Names may repeat.
///
/// `+` and `%20` are spaces. Invalid escapes are kept as they are, and invalid UTF-8 becomes
/// `U+FFFD`, as the standard requires.
///
/// # Source
///
/// URL Standard, "application/x-www-form-urlencoded parsing", by the crate `form_urlencoded`.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::Pairs;
///
/// let query = Pairs::parse(b"q=black+tea&tag=hot&tag=dark", 100).unwrap();
/// assert_eq!(query.get("q"), Some("black tea"));
/// assert_eq!(query.all("tag").collect::<Vec<_>>(), ["hot", "dark"]);
/// assert_eq!(query.get("page"), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs {
    pairs: Vec<(String, String)>,
}

impl Pairs {
    /// Decodes `text`; returns `None` if it has more than `count_max` pairs.
    pub fn parse(text: &[u8], count_max: usize) -> Option<Self> {
        let pairs: Vec<_> = form_urlencoded::parse(text)
            .take(count_max.saturating_add(1))
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        (pairs.len() <= count_max).then_some(Self { pairs })
    }

    /// Returns the first value of a name; `None` if the name does not occur.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns all values of a name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let pairs = self.pairs.iter().filter(move |(key, _)| key == name);
        pairs.map(|(_, value)| value.as_str())
    }

    /// Iterates over all pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.pairs.iter();
        pairs.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let pairs = Pairs::parse(text.as_bytes(), 10).unwrap();
        assert_eq!(pairs.iter().collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn pairs_are_decoded_in_order() {
        check("", &[]);
        check("&&", &[]);
        check("a", &[("a", "")]);
        check("a=1&b=2&a=3", &[("a", "1"), ("b", "2"), ("a", "3")]);
        check("a=b=c", &[("a", "b=c")]);
        check("%C3%B1+x=%26%3D", &[("ñ x", "&=")]);
        check("a=%zz%4", &[("a", "%zz%4")]);
        check("a=%ff", &[("a", "\u{fffd}")]);
    }

    #[test]
    fn count_max_and_one_past() {
        assert!(Pairs::parse("a&".repeat(10).as_bytes(), 10).is_some());
        assert!(Pairs::parse("a&".repeat(11).as_bytes(), 10).is_none());
    }
}
