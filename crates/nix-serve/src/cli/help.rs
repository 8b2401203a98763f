//! The texts of `--help` and `--version`.

/// What `--help` prints.
pub fn help() -> &'static str {
    include_str!("help.txt")
}

/// What `--version` prints, without the line's end.
pub fn version() -> String {
    format!("nix-serve (Samovar) {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::option::{OPTIONS, Takes, find};

    fn words() -> impl Iterator<Item = &'static str> {
        help().split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
    }

    #[test]
    fn every_line_fits_a_terminal() {
        assert!(help().lines().all(|line| line.len() <= 79), "79 columns");
        assert!(help().ends_with('\n') && !help().contains('\t'));
    }

    #[test]
    fn every_option_with_a_needed_value_is_explained() {
        let needs_value = OPTIONS
            .iter()
            .filter(|option| matches!(option.takes, Takes::Value(_)));
        for option in needs_value {
            let name = format!("--{}", option.names[0]);
            assert!(words().any(|word| word == name), "{name}");
        }
    }

    #[test]
    fn every_option_that_is_explained_is_known() {
        for word in words().filter(|word| word.starts_with("--")) {
            let name = word.trim_start_matches('-');
            assert!(find(name).is_some(), "{word}");
        }
    }
}
