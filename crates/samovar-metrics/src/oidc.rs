//! The status of the issuers of ID tokens, and its Prometheus metrics.

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// The metric families, one line each: name, type and help.
macro_rules! families {
    () => {
        "\
samovar_oidc_exchanges_total counter ID tokens that jobs have sent, by issuer and outcome.
samovar_oidc_keys_age_seconds gauge Time since the keys of the issuer were fetched.
"
    };
}
pub(crate) use families;

/// The status of one issuer of ID tokens. The counters begin at the start of the server, or when a
/// reload has added the issuer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OidcStatus {
    /// The name in the configuration; `(unknown)` for tokens of all other issuers, and those
    /// without a readable one.
    pub issuer: String,
    /// ID tokens that were exchanged for a token.
    pub granted_count: u64,
    /// ID tokens that were refused.
    pub refused_count: u64,
    /// ID tokens that could not be verified, because the issuer did not answer.
    pub unavailable_count: u64,
    /// Time since the keys were fetched, in seconds; `None` if they were not needed yet.
    pub keys_age_s: Option<u64>,
}

/// Writes the metrics of the issuers.
pub(crate) fn expose(text: &mut Text, issuers: &[OidcStatus]) {
    let mut family = text.family("samovar_oidc_exchanges_total");
    for one in issuers {
        for (outcome, count) in [
            ("granted", one.granted_count),
            ("refused", one.refused_count),
            ("unavailable", one.unavailable_count),
        ] {
            family.put(&[("issuer", &one.issuer), ("outcome", outcome)], count);
        }
    }
    let mut family = text.family("samovar_oidc_keys_age_seconds");
    for one in issuers {
        if let Some(age) = one.keys_age_s {
            family.put(&[("issuer", &one.issuer)], age);
        }
    }
}
