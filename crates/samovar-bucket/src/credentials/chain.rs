//! The search for credentials, source by source.

use std::path::{Path, PathBuf};

use ureq::Agent;

use crate::credentials::environment::Environment;
use crate::credentials::login::{Found, Login};
use crate::credentials::{file, metadata, sts};
use crate::settings::Settings;
use crate::source::{CredentialError, CredentialSource};

/// The sources of a bucket's credentials, in their order.
#[derive(Debug)]
pub(crate) struct Chain {
    source: CredentialSource,
    environment: Environment,
    agent: Agent,
    /// Region of the bucket.
    region: String,
}

impl Chain {
    pub(crate) fn new(settings: &Settings, agent: Agent, environment: Environment) -> Self {
        Self {
            source: settings.credentials.clone(),
            region: settings.region.clone(),
            environment,
            agent,
        }
    }

    /// Asks the sources in their order. The first that is there decides, even if it fails.
    pub(crate) fn find(&self) -> Result<Found, CredentialError> {
        match &self.source {
            CredentialSource::Anonymous => Ok(Found {
                login: Login::Anonymous,
                expires_at: None,
            }),
            CredentialSource::Fixed(fixed) => {
                let token = fixed.token.as_deref();
                Ok(Found::keys(&fixed.key_id, &fixed.secret, token))
            }
            CredentialSource::File(path) => file::read(path, self.section()),
            CredentialSource::Standard => self.standard(),
        }
    }

    fn standard(&self) -> Result<Found, CredentialError> {
        if let Some(found) = self.of_environment() {
            return Ok(found);
        }
        if let Some(file) = self.environment.value("AWS_WEB_IDENTITY_TOKEN_FILE") {
            return sts::assume(
                &self.agent,
                &self.environment,
                Path::new(file),
                &self.region,
            );
        }
        if let Some(path) = self.shared_file() {
            return file::read(&path, self.section());
        }
        if let Some(found) = metadata::of_container(&self.agent, &self.environment)? {
            return Ok(found);
        }
        if self.environment.value("AWS_EC2_METADATA_DISABLED") == Some("true") {
            return Err(CredentialError::None);
        }
        metadata::of_machine(&self.agent, &self.environment)
    }

    fn of_environment(&self) -> Option<Found> {
        let key_id = self.environment.value("AWS_ACCESS_KEY_ID")?;
        let secret = self.environment.value("AWS_SECRET_ACCESS_KEY")?;
        let token = self.environment.value("AWS_SESSION_TOKEN");
        Some(Found::keys(
            key_id.trim(),
            secret.trim(),
            token.map(str::trim),
        ))
    }

    /// Returns the shared file if it is named, or is at its usual place.
    fn shared_file(&self) -> Option<PathBuf> {
        if let Some(named) = self.environment.value("AWS_SHARED_CREDENTIALS_FILE") {
            return Some(PathBuf::from(named));
        }
        let home = self.environment.value("HOME")?;
        let usual = Path::new(home).join(".aws/credentials");
        usual.exists().then_some(usual)
    }

    fn section(&self) -> &str {
        self.environment.value("AWS_PROFILE").unwrap_or("default")
    }
}
