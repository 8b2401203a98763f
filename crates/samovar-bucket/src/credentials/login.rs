//! Credentials that were found.

/// With what requests are signed.
#[derive(Debug)]
pub(crate) enum Login {
    /// They are not signed.
    Anonymous,
    /// By these keys.
    Keys(rusty_s3::Credentials),
}

/// Credentials that were found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) login: Login,
    /// When they expire, in seconds since 1970.
    pub(crate) expires_at: Option<i64>,
}

impl Found {
    pub(crate) fn keys(key_id: &str, secret: &str, token: Option<&str>) -> Self {
        let keys = match token {
            Some(token) => rusty_s3::Credentials::new_with_token(key_id, secret, token),
            None => rusty_s3::Credentials::new(key_id, secret),
        };
        Self {
            login: Login::Keys(keys),
            expires_at: None,
        }
    }
}

impl Login {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Anonymous, Self::Anonymous) => true,
            (Self::Keys(one), Self::Keys(other)) => one == other,
            _ => false,
        }
    }
}
