//! Remarks on a command line that the server starts with nevertheless.

use std::fmt;

/// One remark; its `Display` is one line without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// Nobody knows this option.
    UnknownOption {
        /// As spelled.
        option: String,
        /// The value that went with it.
        value: Option<String>,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// The option is known and does nothing here.
    NoEffect {
        /// As spelled.
        option: String,
        /// Why.
        reason: &'static str,
    },
    /// Another option decides.
    Overridden {
        /// The option without effect.
        option: &'static str,
        /// The one that decides.
        by: &'static str,
    },
    /// The value is empty: as if the option were not there.
    EmptyValue {
        /// As spelled.
        option: String,
    },
    /// The value is greater than what can be.
    Reduced {
        /// As spelled.
        option: String,
        /// What is used instead.
        to: u64,
    },
    /// `--listen 5000`: a Unix socket of this name.
    SocketWithoutSlash {
        /// The name.
        name: String,
    },
    /// `--listen HOST:PORT:word`.
    ListenSuffix {
        /// The word.
        suffix: String,
    },
    /// Words that are neither options nor values.
    Words(Vec<String>),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption {
                option,
                value,
                nearest,
            } => {
                write!(f, "unknown option {} ignored", option.escape_debug())?;
                if let Some(value) = value {
                    write!(f, ", with its value {value:?}")?;
                }
                match nearest {
                    Some(nearest) => write!(f, "; did you mean {nearest}?"),
                    None => Ok(()),
                }
            }
            Self::NoEffect { option, reason } => write!(f, "{option} has no effect: {reason}"),
            Self::Overridden { option, by } => {
                write!(f, "{option} has no effect: {by} decides")
            }
            Self::EmptyValue { option } => write!(f, "{option} is empty: as if it were not given"),
            Self::Reduced { option, to } => write!(f, "{option} is too great: {to} is used"),
            Self::SocketWithoutSlash { name } => write!(
                f,
                "--listen {name:?} is a Unix socket of that name in the working directory; \
                 a port is written :PORT, an address HOST:PORT"
            ),
            Self::ListenSuffix { suffix } => {
                write!(f, "--listen: {suffix:?} after the port means nothing")
            }
            Self::Words(words) => {
                f.write_str("ignored, as these are no options:")?;
                words.iter().try_for_each(|word| write!(f, " {word:?}"))
            }
        }
    }
}
