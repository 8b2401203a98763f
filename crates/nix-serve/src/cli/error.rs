//! Command lines that the server does not start with.

/// Why the command line was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// A value cannot mean anything.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// What was asked for would silently not be there.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl CliError {
    /// The exit code for all of them, as of most programs for a wrong command line. It differs from
    /// 1, with which a start fails that may succeed when tried again.
    pub const EXIT_CODE: u8 = 2;
}

/// A value that cannot mean anything. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The value is of the wrong kind.
    #[error("{option}: {given:?} is not {expected}")]
    Value {
        /// As spelled on the command line.
        option: String,
        /// What was given.
        given: String,
        /// What may be given.
        expected: &'static str,
    },
    /// The command line ends, or the next option begins, where the value should stand.
    #[error("{option} needs {expected}{}", followed_by(.next.as_deref()))]
    ValueMissing {
        /// As spelled on the command line.
        option: String,
        /// What may be given.
        expected: &'static str,
        /// The option that stands in the value's place.
        next: Option<String>,
    },
}

fn followed_by(next: Option<&str>) -> String {
    next.map_or_else(String::new, |next| format!(", but {next:?} follows"))
}

/// Something that was asked for, is not there, and would be missed too late. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// TLS was switched on, with nothing to do it with.
    #[error(
        "{asked_by} asks for TLS, which needs both --ssl-cert FILE and --ssl-key FILE; the server \
         does not start rather than serve unencrypted"
    )]
    Tls {
        /// The option.
        asked_by: String,
    },
    /// Perl code was given.
    #[error(
        "{option} runs Perl code around the server, which this one cannot; as such code may be \
         what asks for passwords, it does not start without it (drop the option if the \
         cache is public)"
    )]
    PerlCode {
        /// The option.
        option: String,
    },
    /// Protection that only `samovar serve` has.
    #[error(
        "{option} is an option of `samovar serve`, not of nix-serve; the server does not start \
         without it (run `samovar serve`, or remove the option)"
    )]
    SamovarServe {
        /// The option.
        option: String,
    },
    /// An option for protection that was given an empty value.
    #[error("{option} is empty; the server does not start without it (give a value, or remove it)")]
    Empty {
        /// The option.
        option: String,
    },
    /// A rule about who may connect or as whom to run.
    #[error(
        "{option} restricts access, and this server does not know the rule; it does not start \
         without it (use a firewall, or --user and --group, and drop the option)"
    )]
    AccessRule {
        /// The option.
        option: String,
    },
}
