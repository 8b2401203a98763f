//! Errors in the command line.

/// An error in the command line that prevents the server from starting. The message is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The value does not have the expected form.
    #[error("{option} must be {expected}, got {given:?}")]
    Value {
        /// The option as spelled on the command line.
        option: String,
        /// The invalid value.
        given: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// The value is missing: the command line ends, or another option follows.
    #[error("{option} requires {expected}{}", followed_by(.next.as_deref()))]
    ValueMissing {
        /// The option as spelled on the command line.
        option: String,
        /// A description of valid values.
        expected: &'static str,
        /// The option that follows, if there is one.
        next: Option<String>,
    },
    /// An option turns on TLS, but a certificate or a key is missing. Contains the option.
    #[error(
        "{0} asks for TLS, which requires both --tls-certificate FILE and --tls-key FILE; not \
         starting without encryption"
    )]
    Tls(String),
    /// An option runs Perl code. Contains the option.
    #[error(
        "{0} runs Perl code, which is not supported and may be what asks for passwords; not \
         starting without it (remove the option if the cache is public)"
    )]
    PerlCode(String),
    /// An option requests protection that only `samovar serve` has. Contains the option.
    #[error(
        "{0} is an option of `samovar serve`, not of nix-serve; not starting without it (run \
         `samovar serve`, or remove the option)"
    )]
    SamovarServe(String),
    /// An unknown option begins as those of `samovar serve` that request protection. Contains the
    /// option.
    #[error(
        "unknown option {0:?}, which begins as options of `samovar serve` that ask for protection; \
         not starting without it (correct the option, or remove it)"
    )]
    Unknown(String),
    /// An unknown option is similar to one that requests protection.
    #[error(
        "unknown option {option:?}; did you mean {meant} of `{program}`? not starting without it \
         (correct the option, or remove it)"
    )]
    Misspelled {
        /// The option as spelled on the command line.
        option: String,
        /// The option that was probably meant.
        meant: String,
        /// The program that has this option.
        program: &'static str,
    },
    /// An environment variable requests protection, but has no effect.
    #[error(
        "${variable} has no effect on nix-serve; not starting without it ({instead}, or unset it)"
    )]
    Variable {
        /// The name of the variable.
        variable: String,
        /// What to do instead.
        instead: String,
    },
    /// A protective option was given an empty value. Contains the option.
    #[error("{0} is empty; not starting without it (set a value, or remove the option)")]
    Empty(String),
    /// An option of `Net::Server` restricts access or the rights of the process. Contains the
    /// option.
    #[error(
        "{0} restricts access, and is not supported; not starting without it (use a firewall, or \
         --user and --group, and remove the option)"
    )]
    AccessRule(String),
}

impl CliError {
    /// Exit code of an invalid command line. Differs from 1, the code for a failed start that may
    /// succeed when it is tried again.
    pub const EXIT_CODE: u8 = 2;
}

fn followed_by(next: Option<&str>) -> String {
    next.map_or_else(String::new, |next| format!(", got the option {next:?}"))
}
