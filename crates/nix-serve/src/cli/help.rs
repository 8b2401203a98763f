//! The texts of `--help` and `--version`.

/// Returns the output of `--help`.
pub fn help() -> &'static str {
    include_str!("help.txt")
}

/// Returns the output of `--version`, without a newline.
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
            .filter(|option| matches!(option.takes, Takes::Value(..)));
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

    #[test]
    fn printed_defaults_are_those_in_effect() {
        let config = crate::environment::read(|_| None);
        let limits = &config.limits;
        for (option, default) in [
            ("--backlog", u64::from(config.backlog)),
            ("--priority", u64::from(config.caches[0].priority)),
            ("--keepalive-timeout", limits.idle_time.as_secs()),
            ("--read-timeout", limits.head_time.as_secs()),
            ("--timeout", limits.stall_time.as_secs()),
        ] {
            let (_, rest) = help().split_once(&format!("  {option} ")).expect(option);
            let (_, rest) = rest.split_once("[default: ").expect(option);
            assert_eq!(
                rest.split(']').next(),
                Some(&*default.to_string()),
                "{option}"
            );
        }
    }
}
