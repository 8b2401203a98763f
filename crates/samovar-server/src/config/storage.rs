//! Where uploaded paths are stored if not in a directory alone: the bucket with their files, and
//! the database of their metadata.

use std::path::PathBuf;

use samovar_bucket::CredentialSource;
use samovar_storage::{BucketLocation, Location, PostgresSettings, PostgresSettingsError};

use super::Configuration;
use super::draft::requires;
use super::error::ConfigError;

/// Maximum length of the name of a node, bytes.
const NODE_NAME_LEN_MAX: usize = 64;

/// Settings of the bucket with the files of uploaded paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSettings {
    /// URL `s3://BUCKET/PREFIX` with parameters.
    pub url: String,
    /// File with the access key; `None`: that of the environment, of the user, or of the machine.
    pub credentials_file: Option<PathBuf>,
    /// PEM file: the certificate authorities of the S3 engine; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Maximum total length of the files in the disk cache, bytes.
    pub cache_len: u64,
    /// Length of a file above which clients are redirected to the bucket, bytes; `None`: never.
    pub redirect_over: Option<u64>,
    /// Whether small NARs that are uploaded together share an object.
    pub packs: bool,
}

impl Configuration {
    /// Returns where the storage keeps its data; `None` if none is configured.
    ///
    /// # Errors
    ///
    /// The bucket or the database cannot be used as configured.
    pub fn location(&self) -> Result<Option<Location>, ConfigError> {
        let Some(directory) = &self.storage else {
            return Ok(None);
        };
        let bucket = self.bucket.as_ref().map(BucketSettings::location);
        let database = self.database.as_ref().map(DatabaseSettings::location);
        let location = Location::new(directory).with_bucket(bucket.transpose()?);
        Ok(Some(location.with_database(database.transpose()?)))
    }
}

impl BucketSettings {
    /// Default of [`cache_len`](Self::cache_len), bytes.
    pub const CACHE_LEN: u64 = 10 << 30;

    /// Returns where the bucket is, and how it is reached.
    ///
    /// # Errors
    ///
    /// The URL is invalid.
    pub fn location(&self) -> Result<BucketLocation, ConfigError> {
        let mut settings = samovar_bucket::Settings::parse(&self.url)
            .map_err(|error| ConfigError::Conflict(format!("bucket.url: {error}")))?;
        settings.ca_file.clone_from(&self.ca_file);
        if let Some(file) = &self.credentials_file {
            settings.credentials = CredentialSource::File(file.clone());
        }
        Ok(BucketLocation {
            settings,
            cache_len_max: self.cache_len,
            redirect_over: self.redirect_over,
            packs: self.packs,
        })
    }
}

/// Settings of the PostgreSQL database of uploaded paths.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// URL `postgresql://…`, which may contain a password.
    pub url: String,
    /// File with the password; `None`: that of the URL, or of the environment.
    pub password_file: Option<PathBuf>,
}

impl DatabaseSettings {
    /// Returns where the database is, and how it is reached. Reads the file with the password.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or the file cannot be read.
    pub fn location(&self) -> Result<PostgresSettings, ConfigError> {
        let failed = |option: &str, error: PostgresSettingsError| {
            ConfigError::Conflict(format!("{option}: {error}"))
        };
        let parsed = PostgresSettings::parse(&self.url);
        let mut settings = parsed.map_err(|error| failed("database.url", error))?;
        if let Some(file) = &self.password_file {
            let read = settings.read_password(file);
            read.map_err(|error| failed("database.password-file", error))?;
        }
        Ok(settings)
    }
}

impl std::fmt::Debug for DatabaseSettings {
    /// Leaves out the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseSettings")
            .field("url", &samovar_text::without_logins(&self.url))
            .field("password_file", &self.password_file)
            .finish()
    }
}

/// The options of the bucket that were read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BucketDraft {
    pub(super) url: Option<String>,
    pub(super) credentials_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) cache_len: Option<u64>,
    pub(super) is_redirected: bool,
    pub(super) redirect_over: Option<u64>,
    pub(super) packs: Option<bool>,
}

impl BucketDraft {
    /// Completes the settings of the bucket; `None` if none is set.
    pub(super) fn finish(self) -> Result<Option<BucketSettings>, ConfigError> {
        let Some(url) = self.url else {
            let given = [
                ("bucket.credentials-file", self.credentials_file.is_some()),
                ("bucket.ca-file", self.ca_file.is_some()),
                ("bucket.cache-size", self.cache_len.is_some()),
                ("bucket.deliver = \"redirect\"", self.is_redirected),
                ("bucket.redirect-over", self.redirect_over.is_some()),
                ("bucket.pack", self.packs.is_some()),
            ];
            let first = given.iter().find(|(_, is_given)| *is_given);
            return first.map_or(Ok(None), |(option, _)| Err(requires(option, "bucket.url")));
        };
        if self.redirect_over.is_some() && !self.is_redirected {
            return Err(requires(
                "bucket.redirect-over",
                "bucket.deliver = \"redirect\"",
            ));
        }
        let over = self.redirect_over.unwrap_or(0);
        Ok(Some(BucketSettings {
            url,
            credentials_file: self.credentials_file,
            ca_file: self.ca_file,
            cache_len: self.cache_len.unwrap_or(BucketSettings::CACHE_LEN),
            redirect_over: self.is_redirected.then_some(over),
            packs: self.packs.unwrap_or(true),
        }))
    }
}

/// The options of the database that were read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DatabaseDraft {
    pub(super) url: Option<String>,
    pub(super) password_file: Option<PathBuf>,
}

impl DatabaseDraft {
    /// Completes the settings of the database; `None` if none is set.
    pub(super) fn finish(self) -> Result<Option<DatabaseSettings>, ConfigError> {
        match (self.url, self.password_file) {
            (Some(url), password_file) => Ok(Some(DatabaseSettings { url, password_file })),
            (None, Some(_)) => Err(requires("database.password-file", "database.url")),
            (None, None) => Ok(None),
        }
    }
}

/// Checks that what the storage needs is set.
pub(super) fn check(config: &Configuration) -> Result<(), ConfigError> {
    if config.bucket.is_some() && config.storage.is_none() {
        return Err(requires(
            "bucket.url",
            "storage, the directory for temporary files and the disk cache",
        ));
    }
    if config.database.is_some() && config.bucket.is_none() {
        return Err(requires(
            "database.url",
            "bucket.url, since several servers cannot share a directory",
        ));
    }
    if config.node.is_some() && config.database.is_none() {
        return Err(requires("node.name", "database.url"));
    }
    Ok(())
}

/// Checks the URL of a bucket. The error describes a valid one.
pub(super) fn check_bucket_url(url: &str) -> Result<(), String> {
    let expected = "a URL such as s3://BUCKET/PREFIX?region=REGION&endpoint=https://HOST";
    let rest = url.strip_prefix("s3://").ok_or(expected)?;
    let bucket = rest.split(['/', '?']).next().unwrap_or_default();
    if bucket.contains('@') {
        return Err(format!(
            "{expected}, without an access key: set bucket.credentials-file"
        ));
    }
    let parsed = samovar_bucket::Settings::parse(url);
    parsed.map_err(|error| format!("{expected}; {error}"))?;
    Ok(())
}

/// Checks the URL of a database. The error describes a valid one.
pub(super) fn check_database_url(url: &str) -> Result<(), String> {
    let expected = "a URL such as postgresql://USER@HOST:5432/DATABASE?sslmode=verify-full";
    let schemes = ["postgresql://", "postgres://"];
    let rest = schemes.iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or(expected)?;
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !br#""'<>\^`{|}"#.contains(&byte);
    if !rest.bytes().all(is_plain) {
        return Err(format!(
            "{expected}, in which only characters of URLs occur"
        ));
    }
    let authority_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // What is before it may be the rest of a login.
    if rest[authority_len..].contains('@') {
        return Err(format!(
            "{expected}, with / ? # of a login written as %2F %3F %23, and other @ as %40"
        ));
    }
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let is_password = |pair: &str| {
        pair.split('=')
            .next()
            .is_some_and(|name| name.ends_with("password"))
    };
    // Nothing masks it in messages.
    match query.split('&').any(is_password) {
        true => Err(format!(
            "{expected}, without a password among its parameters: set database.password-file"
        )),
        false => {
            let parsed = PostgresSettings::parse(url);
            parsed.map_err(|error| format!("{expected}; {error}"))?;
            Ok(())
        }
    }
}

/// Returns whether a text can be the name of a node.
pub(super) fn is_node_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !text.is_empty() && text.len() <= NODE_NAME_LEN_MAX && text.bytes().all(is_plain)
}

/// Returns the name of this machine as the name of a node.
pub(crate) fn machine_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    match is_node_name(&name) {
        true => name.into_owned(),
        // The kernel allows other characters.
        false => "node".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for url in [
            "s3://bucket",
            "s3://bucket/p?region=x",
            "s3://bucket?endpoint=http://h:1",
        ] {
            assert_eq!(check_bucket_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "b",
            "s3:b",
            "s3://",
            "s3:///p",
            "s3://key:secret@b",
            "https://b",
        ] {
            assert!(check_bucket_url(url).is_err(), "{url}");
        }
        for url in [
            "postgresql://u:p@h,i:1/d?sslmode=require",
            "postgres://h",
            "postgresql:///d",
        ] {
            assert_eq!(check_database_url(url), Ok(()), "{url}");
        }
        for url in ["", "mysql://h", "h/d", "postgresql://h/d?a=b&password=x"] {
            assert!(check_database_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn names_of_nodes() {
        assert!(is_node_name("a.B-1_c") && is_node_name(&"a".repeat(64)));
        assert!(
            ["", "a b", "ä", &*"a".repeat(65)]
                .iter()
                .all(|name| !is_node_name(name))
        );
        assert!(is_node_name(&machine_name()));
    }
}
