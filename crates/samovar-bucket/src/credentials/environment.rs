//! The environment variables that name credentials.

use std::collections::HashMap;

/// The environment variables that name credentials.
#[derive(Clone)]
pub(crate) struct Environment(HashMap<&'static str, String>);

/// All that are read.
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_PROFILE",
    "HOME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
];

impl Environment {
    /// Returns that of this process. Empty values count as absent.
    pub(crate) fn process() -> Self {
        let value = |name: &&'static str| Some((*name, std::env::var(name).ok()?));
        let pairs = VARIABLES.iter().filter_map(value);
        Self(
            pairs
                .filter(|(_, value)| !value.trim().is_empty())
                .collect(),
        )
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        debug_assert!(VARIABLES.contains(&name), "{name} is not read");
        self.0.get(name).map(String::as_str)
    }
}

/// Shows no values: some are secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
