//! The known name a mistyped one was probably meant to be.

use super::option::OPTIONS;

/// The long name nearest to `name`, with its dashes; `None` if nothing is near.
pub(super) fn nearest(name: &str) -> Option<String> {
    let name: String = name
        .trim_start_matches('-')
        .chars()
        .take(NAME_LEN_MAX)
        .collect();
    let name = name.replace('_', "-");
    // `-p8080` is no option of anybody's, yet what it says is plain.
    let allowed = (name.chars().count() / 3).min(3);
    OPTIONS
        .iter()
        .flat_map(|option| option.names)
        .filter(|known| known.len() > 1)
        .map(|known| (distance(&name.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, known)| format!("--{known}"))
        .or_else(|| short_with_value(&name))
}

/// Longer names are cut: the comparison costs the product of both lengths.
const NAME_LEN_MAX: usize = 64;

fn short_with_value(name: &str) -> Option<String> {
    let (letter, value) = name.split_at_checked(1)?;
    let plausible = match letter {
        "p" => value.bytes().all(|byte| byte.is_ascii_digit()),
        "l" | "o" | "S" => value.contains([':', '/', '.']),
        _ => false,
    };
    (plausible && !value.is_empty()).then(|| format!("-{letter} {value}"))
}

/// Levenshtein's distance.
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

    #[track_caller]
    fn check(name: &str, expected: Option<&str>) {
        assert_eq!(nearest(name).as_deref(), expected);
    }

    #[test]
    fn mistyped_names() {
        check("--lisen", Some("--listen"));
        check("--acces-log", Some("--access-log"));
        check("--worker", Some("--workers"));
        check("--Workers", Some("--workers"));
        check("--max_request", Some("--max-requests"));
        check("--foo", None);
        check("--x", None);
        check("", None);
    }

    #[test]
    fn short_options_with_the_value_in_the_same_word() {
        check("-p8080", Some("-p 8080"));
        check("-l:5000", Some("-l :5000"));
        check("-S/run/s", Some("-S /run/s"));
        check("-p", None);
    }
}
