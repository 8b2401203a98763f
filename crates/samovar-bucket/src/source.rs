//! Where credentials come from, and why there are none.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialSource {
    /// The first of these that is there:
    ///
    /// 1. the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
    /// 2. a web identity: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`
    ///    (`AWS_ROLE_SESSION_NAME`, `AWS_ENDPOINT_URL_STS`);
    /// 3. the shared file: `AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`, section
    ///    `AWS_PROFILE` or `default`;
    /// 4. a container's role: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or
    ///    `AWS_CONTAINER_CREDENTIALS_FULL_URI` (`AWS_CONTAINER_AUTHORIZATION_TOKEN`, or its
    ///    `_FILE`);
    /// 5. the role of a machine at Amazon, by its metadata service (`IMDSv2`), unless
    ///    `AWS_EC2_METADATA_DISABLED` is `true`.
    Standard,
    /// A file: in the form of the shared file, or two lines, the key id and the secret.
    File(PathBuf),
    /// These.
    Fixed(FixedCredentials),
    /// None: requests are not signed. For public buckets, which can only be read.
    Anonymous,
}

/// Credentials that do not change. Their secrets are not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct FixedCredentials {
    /// Id of the access key.
    pub key_id: String,
    /// Secret of the access key.
    pub secret: String,
    /// Token of a session.
    pub token: Option<String>,
}

impl fmt::Debug for FixedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedCredentials")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// Why there are no usable credentials. Never contains a secret.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// No source has any.
    #[error(
        "none found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file of credentials"
    )]
    None,
    /// A file cannot be read.
    #[error("the file {} cannot be read", file.display())]
    Unreadable {
        /// Its path.
        file: PathBuf,
        /// Why.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A file has no credentials.
    #[error(
        "the file {} has no aws_access_key_id with aws_secret_access_key in section [{section}], \
         and is not a line with a key id and a line with a secret",
        file.display()
    )]
    Form {
        /// Its path.
        file: PathBuf,
        /// The section that was looked for.
        section: String,
    },
    /// A variable of the environment has a value that cannot be used.
    #[error("the environment variable {name} {what}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong with its value.
        what: &'static str,
    },
    /// A service that gives credentials cannot be reached.
    #[error("{service} cannot be reached")]
    Unreachable {
        /// Name of the service.
        service: &'static str,
        /// Why.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A service refused to give credentials, or its answer has none.
    #[error("{service} gave none: status {status}{}", code_in_brackets(code))]
    Refused {
        /// Name of the service.
        service: &'static str,
        /// Status of its answer.
        status: u16,
        /// Code of the error, if it gave one.
        code: String,
    },
}

fn code_in_brackets(code: &str) -> String {
    if code.is_empty() {
        String::new()
    } else {
        format!(" ({code})")
    }
}

impl CredentialError {
    /// Returns whether the source may have credentials later, without a change by the operator.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::None | Self::Unreadable { .. } | Self::Form { .. } | Self::Variable { .. } => {
                false
            }
        }
    }
}
