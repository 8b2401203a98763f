//! Credentials for a web identity: `AssumeRoleWithWebIdentity` of the security token service.
//!
//! # Source
//!
//! AWS Security Token Service, API reference 2011-06-15, `AssumeRoleWithWebIdentity`. The request
//! is not signed: the identity's token is what it proves itself by.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use url::form_urlencoded::Serializer;

use crate::credentials::environment::Environment;
use crate::credentials::login::Found;
use crate::credentials::metadata::{Ask, unix_time};
use crate::source::CredentialError;
use crate::xml::element;

const SERVICE: &str = "the security token service";

/// The service asks the issuer of the token for its keys.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Exchanges the token in `token_file` for credentials of the role in `AWS_ROLE_ARN`.
pub(super) fn assume(
    agent: &Agent,
    environment: &Environment,
    token_file: &Path,
    region: &str,
) -> Result<Found, CredentialError> {
    let role = environment.value("AWS_ROLE_ARN");
    let role = role.ok_or(CredentialError::Variable {
        name: "AWS_ROLE_ARN",
        what: "is not set, but AWS_WEB_IDENTITY_TOKEN_FILE is",
    })?;
    let session = environment.value("AWS_ROLE_SESSION_NAME");
    // Read each time: whoever issues the token renews the file.
    let token = std::fs::read_to_string(token_file);
    let token = token.map_err(|source| CredentialError::Unreadable {
        file: token_file.to_owned(),
        source: Arc::new(source),
    })?;
    let body = Serializer::new(String::new())
        .append_pair("Action", "AssumeRoleWithWebIdentity")
        .append_pair("Version", "2011-06-15")
        .append_pair("RoleArn", role)
        .append_pair("RoleSessionName", session.unwrap_or("samovar"))
        .append_pair("WebIdentityToken", token.trim())
        .finish();
    let ask = Ask {
        service: SERVICE,
        method: "POST",
        url: &endpoint(environment, region),
        headers: &[("content-type", "application/x-www-form-urlencoded")],
        body: &body,
        time: ANSWER_TIME,
    };
    credentials(&ask.answer(agent)?)
}

fn endpoint(environment: &Environment, region: &str) -> String {
    if let Some(url) = environment.value("AWS_ENDPOINT_URL_STS") {
        return url.to_owned();
    }
    let named = environment.value("AWS_REGION");
    let named = named.or_else(|| environment.value("AWS_DEFAULT_REGION"));
    let region = named.unwrap_or(region);
    let end = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://sts.{region}.amazonaws.com{end}/")
}

fn credentials(answer: &str) -> Result<Found, CredentialError> {
    let none = || CredentialError::Refused {
        service: SERVICE,
        status: 200,
        code: element(answer, "Code").unwrap_or_default(),
    };
    let key_id = element(answer, "AccessKeyId").ok_or_else(none)?;
    let secret = element(answer, "SecretAccessKey").ok_or_else(none)?;
    let token = element(answer, "SessionToken");
    let expires = element(answer, "Expiration");
    Ok(Found {
        expires_at: expires.as_deref().and_then(unix_time),
        ..Found::keys(&key_id, &secret, token.as_deref())
    })
}
