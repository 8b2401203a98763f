//! Errors in the command line.

/// A command line that the server does not start with. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
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
    /// This option asks for TLS, without a certificate or a key.
    #[error(
        "{0} asks for TLS, which requires both --ssl-cert FILE and --ssl-key FILE; not starting \
         without encryption"
    )]
    Tls(String),
    /// This option runs Perl code.
    #[error(
        "{0} runs Perl code, which is not supported and may be what asks for passwords; not \
         starting without it (remove the option if the cache is public)"
    )]
    PerlCode(String),
    /// This option asks for protection that only `samovar serve` has.
    #[error(
        "{0} is an option of `samovar serve`, not of nix-serve; not starting without it (run \
         `samovar serve`, or remove the option)"
    )]
    SamovarServe(String),
    /// This option for protection was given an empty value.
    #[error("{0} is empty; not starting without it (set a value, or remove the option)")]
    Empty(String),
    /// This rule of `Net::Server` restricts access, or the rights of the process.
    #[error(
        "{0} restricts access, and is not supported; not starting without it (use a firewall, or \
         --user and --group, and remove the option)"
    )]
    AccessRule(String),
}

impl CliError {
    /// Exit code. Differs from 1, the code of a start that may succeed if it is tried again.
    pub const EXIT_CODE: u8 = 2;
}

fn followed_by(next: Option<&str>) -> String {
    next.map_or_else(String::new, |next| format!(", got the option {next:?}"))
}
