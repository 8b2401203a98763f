//! Errors in the command line.

/// A command line that the server does not start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// A value is invalid.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Protection that was asked for cannot be given.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl CliError {
    /// Exit code. Differs from 1, the code of a start that may succeed if it is tried again.
    pub const EXIT_CODE: u8 = 2;
}

/// An invalid value. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The value is of the wrong kind.
    #[error("{option} must be {expected}, got {given:?}")]
    Value {
        /// As spelled on the command line.
        option: String,
        /// The value.
        given: String,
        /// What is expected.
        expected: &'static str,
    },
    /// The command line ends, or another option follows, instead of the value.
    #[error("{option} requires {expected}{}", followed_by(.next.as_deref()))]
    ValueMissing {
        /// As spelled on the command line.
        option: String,
        /// What is expected.
        expected: &'static str,
        /// The option that follows instead.
        next: Option<String>,
    },
}

fn followed_by(next: Option<&str>) -> String {
    next.map_or_else(String::new, |next| format!(", got the option {next:?}"))
}

/// Protection that was asked for and cannot be given. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// TLS without certificate or key.
    #[error(
        "{asked_by} asks for TLS, which requires both --ssl-cert FILE and --ssl-key FILE; not \
         starting without encryption"
    )]
    Tls {
        /// The option.
        asked_by: String,
    },
    /// Perl code.
    #[error(
        "{option} runs Perl code, which is not supported and may be what asks for passwords; not \
         starting without it (remove the option if the cache is public)"
    )]
    PerlCode {
        /// The option.
        option: String,
    },
    /// Protection that only `samovar serve` has.
    #[error(
        "{option} is an option of `samovar serve`, not of nix-serve; not starting without it (run \
         `samovar serve`, or remove the option)"
    )]
    SamovarServe {
        /// The option.
        option: String,
    },
    /// An option for protection that was given an empty value.
    #[error("{option} is empty; not starting without it (set a value, or remove the option)")]
    Empty {
        /// The option.
        option: String,
    },
    /// A rule of `Net::Server` that restricts access, or the rights of the process.
    #[error(
        "{option} restricts access, and is not supported; not starting without it (use a firewall, \
         or --user and --group, and remove the option)"
    )]
    AccessRule {
        /// The option.
        option: String,
    },
}
