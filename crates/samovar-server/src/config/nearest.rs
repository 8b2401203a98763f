//! Suggestions for misspelled names.

/// Maximum length of a compared name, bytes: the time of a comparison is proportional to the
/// product of both lengths.
const NAME_LEN_MAX: usize = 64;

/// Returns the name in `known` that is most similar to `name`; `None` if none is similar enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(NAME_LEN_MAX).collect();
    let allowed = (name.chars().count() / 3).min(3);
    known
        .into_iter()
        .map(|known| (distance(&name.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, known)| known)
}

/// Computes the Levenshtein distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, r) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(l != *r);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (left, right, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("öl", "ol", 1),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
            assert_eq!(distance(right, left), expected, "{right} {left}");
        }
    }

    #[test]
    fn near_and_far() {
        let known = ["priority", "prefix", "listen"];
        assert_eq!(nearest("priorty", known), Some("priority"));
        assert_eq!(nearest("Listen", known), Some("listen"));
        assert_eq!(nearest("nonsense", known), None);
        assert_eq!(nearest("", known), None);
    }
}
