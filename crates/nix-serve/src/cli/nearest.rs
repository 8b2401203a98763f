//! Suggests options for misspelled names.

use samovar_server::config::nearest as nearest_of;

/// Returns the long name in `known` that is most similar to `name`, with its dashes; `None` if no
/// name is similar.
pub(super) fn nearest(name: &str, known: &[String]) -> Option<String> {
    let name = name.trim_start_matches('-').replace('_', "-");
    let long = known
        .iter()
        .map(|known| &**known)
        .filter(|known| known.len() > 1);
    nearest_of(&name, long)
        .map(|known| format!("--{known}"))
        // `-p8080` is not an option, but its intended meaning is clear.
        .or_else(|| short_with_value(&name))
}

fn short_with_value(name: &str) -> Option<String> {
    let (letter, value) = name.split_at_checked(1)?;
    let plausible = match letter {
        "p" => value.bytes().all(|byte| byte.is_ascii_digit()),
        "l" | "o" | "S" => value.contains([':', '/', '.']),
        _ => false,
    };
    (plausible && !value.is_empty()).then(|| format!("-{letter} {value}"))
}

#[cfg(test)]
mod tests {
    use super::super::option;
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Option<&str>) {
        assert_eq!(nearest(name, &option::names()).as_deref(), expected);
    }

    #[test]
    fn mistyped_names() {
        check("--lisen", Some("--listen"));
        check("--acces-log", Some("--access-log"));
        check("--worker", Some("--workers"));
        check("--Workers", Some("--workers"));
        check("--max_request", Some("--max-requests"));
        check("--prot", Some("--port"));
        check("--stroe", Some("--store"));
        check("--hots", Some("--host"));
        check("--sokcet", Some("--socket"));
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
