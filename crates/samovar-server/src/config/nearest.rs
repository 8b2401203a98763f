//! Suggestions for misspelled names.

/// Maximum length of a compared name, bytes: the time of a comparison is proportional to the
/// product of both lengths.
const NAME_LEN_MAX: usize = 64;

/// Returns the name in `known` that is most similar to `name`; `None` if none is similar enough.
///
/// A name of two or three letters may have one typo, a name of four to eight letters two, a longer
/// name three. Two swapped neighbours are one typo.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(NAME_LEN_MAX).collect();
    let len = name.chars().count();
    let is_similar = |known: &str, distance| match len.max(known.chars().count()) {
        0 | 1 => false,
        2 | 3 => distance <= 1,
        4..=8 => distance <= 2,
        _ => distance <= 3,
    };
    known
        .into_iter()
        .map(|known| (distance(&name.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(distance, known)| is_similar(known, *distance))
        .min()
        .map(|(_, known)| known)
}

/// Computes the Levenshtein distance, in which two swapped neighbours count as one change.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, r) in right.iter().enumerate() {
            let substituted = last[j] + usize::from(l != r);
            let mut changes = substituted.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *l == right[j - 1] && left[i - 1] == *r {
                let before: &Vec<usize> = &before_last;
                changes = changes.min(before[j - 1] + 1);
            }
            row.push(changes);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::super::OptionSpec;
    use super::*;

    #[test]
    fn distances() {
        for (left, right, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("öl", "ol", 1),
            ("prot", "port", 1),
            ("lsietn", "listen", 2),
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
        assert_eq!(nearest("gc", ["pin", "cg"]), Some("cg"));
        assert_eq!(nearest("tsl", ["tls"]), Some("tls"));
        assert_eq!(nearest("uusre", ["store", "user"]), Some("user"));
        assert_eq!(nearest("us", ["user"]), Some("user"));
        assert_eq!(nearest("x", ["ws", "tls"]), None);
        assert_eq!(nearest("nonsense", known), None);
        assert_eq!(nearest("", known), None);
    }

    /// Names of one or two letters are too short for a hint.
    #[test]
    fn every_option_has_a_hint_for_two_typos() {
        let names: Vec<String> = OptionSpec::all().map(OptionSpec::option).collect();
        let hint = |typo: &str| {
            let near = nearest(typo, names.iter().map(|name| &**name));
            assert!(near.is_some(), "{typo}");
        };
        for name in names.iter().filter(|name| name.len() > 3) {
            let letters: Vec<char> = name.chars().collect();
            for i in 0..letters.len() - 1 {
                let mut swapped = letters.clone();
                swapped.swap(i, i + 1);
                hint(&swapped.iter().collect::<String>());
                let mut wrong = letters.clone();
                (wrong[i], wrong[i + 1]) = ('!', '?');
                hint(&wrong.iter().collect::<String>());
                let cut = letters[..i].iter().chain(&letters[i + 2..]);
                hint(&cut.collect::<String>());
            }
        }
    }
}
