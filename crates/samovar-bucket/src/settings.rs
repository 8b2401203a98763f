//! Which bucket, and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::source::CredentialSource;

/// A bucket, the prefix of all keys in it, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys: empty, or text that ends with `/`.
    pub prefix: String,
    /// Region in the signature. Engines other than Amazon's accept the one that they are told at
    /// their start.
    pub region: String,
    /// URL of the engine, without the bucket. `None`: Amazon's of the region.
    pub endpoint: Option<String>,
    /// Where the name of the bucket stands in URLs.
    pub style: Style,
    /// PEM file of certificates that are trusted instead of the machine's.
    pub ca_file: Option<PathBuf>,
    /// Where the credentials come from.
    pub credentials: CredentialSource,
    /// How long is waited.
    pub timing: Timing,
}

/// Where the name of a bucket stands in URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// In the path: `https://host/bucket/key`.
    Path,
    /// In the host: `https://bucket.host/key`.
    VirtualHosted,
}

/// How long is waited for the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Maximum time to connect, TLS included.
    pub connect: Duration,
    /// Time without a byte in either direction, after which an attempt has failed. The engine's
    /// work between a request and its answer counts, except that of joining the parts of an upload.
    pub stall: Duration,
    /// Time after the first attempt in which others may begin.
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(20),
            patience: Duration::from_secs(60),
        }
    }
}

/// Why the URL of a bucket was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// It is no URL of this scheme.
    #[error("the URL of a bucket has the form s3://BUCKET/PREFIX?endpoint=URL&region=NAME")]
    Form,
    /// It has a login.
    #[error(
        "the URL of a bucket must not contain a login: credentials come from the environment or a \
         file"
    )]
    Login,
    /// The name of the bucket cannot be one.
    #[error(
        "{0:?} is no name of a bucket: it has 3 to 63 letters, digits, dots, hyphens, \
         underscores"
    )]
    Bucket(String),
    /// The prefix is no prefix of keys.
    #[error("{0:?} is no prefix of keys: it has an empty segment, \".\" or \"..\"")]
    Prefix(String),
    /// A parameter is unknown.
    #[error("unknown parameter {0:?} in the URL of a bucket: known are region, endpoint and style")]
    Parameter(String),
    /// A parameter is there twice.
    #[error("the parameter {0:?} is given twice in the URL of a bucket")]
    Twice(String),
    /// The endpoint is no URL of an engine.
    #[error("the endpoint {0:?} is not of the form https://HOST or https://HOST:PORT")]
    Endpoint(String),
    /// The region is no word.
    #[error("{0:?} is no name of a region: it has letters, digits and hyphens")]
    Region(String),
    /// The style is neither of the two.
    #[error("the style of a bucket is \"path\" or \"virtual\", not {0:?}")]
    Style(String),
}

/// Amazon's first region, which is the default of Nix, too.
const REGION_DEFAULT: &str = "us-east-1";

impl Settings {
    /// Reads `s3://BUCKET/PREFIX?region=NAME&endpoint=URL&style=path|virtual`.
    ///
    /// An endpoint without scheme is `https://`. The region is `us-east-1` by default. The style is
    /// `virtual` at Amazon, unless the name of the bucket has a dot, and `path` otherwise.
    /// Credentials are found as [`CredentialSource::Standard`] says.
    ///
    /// # Errors
    ///
    /// Any [`SettingsError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use samovar_bucket::{Settings, Style};
    ///
    /// let settings = Settings::parse("s3://cache/prod?endpoint=localhost:9000")?;
    /// assert_eq!(settings.bucket, "cache");
    /// assert_eq!(settings.prefix, "prod/");
    /// assert_eq!(settings.endpoint.as_deref(), Some("https://localhost:9000"));
    /// assert_eq!(settings.style, Style::Path);
    /// # Ok::<(), samovar_bucket::SettingsError>(())
    /// ```
    pub fn parse(url: &str) -> Result<Self, SettingsError> {
        let rest = url.strip_prefix("s3://").ok_or(SettingsError::Form)?;
        if rest.contains('#') {
            return Err(SettingsError::Form);
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        // A secret may contain a slash.
        if place.contains('@') {
            return Err(SettingsError::Login);
        }
        if !is_bucket_name(bucket) {
            return Err(SettingsError::Bucket(bucket.to_owned()));
        }
        let parameters = Parameters::read(query)?;
        let style = match parameters.style {
            Some(style) => style,
            None if parameters.endpoint.is_some() || bucket.contains('.') => Style::Path,
            None => Style::VirtualHosted,
        };
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: normal_prefix(prefix)?,
            region: parameters
                .region
                .unwrap_or_else(|| REGION_DEFAULT.to_owned()),
            endpoint: parameters.endpoint,
            style,
            ca_file: None,
            credentials: CredentialSource::Standard,
            timing: Timing::default(),
        })
    }

    /// Returns the URL of the engine, without the bucket.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Endpoint`], if the field was set to what is no URL of an engine.
    pub(crate) fn endpoint_url(&self) -> Result<Url, SettingsError> {
        let text = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None if self.region.starts_with("cn-") => {
                format!("https://s3.{}.amazonaws.com.cn", self.region)
            }
            None => format!("https://s3.{}.amazonaws.com", self.region),
        };
        checked_endpoint(&text)
    }
}

/// The parameters of a bucket's URL.
#[derive(Debug, Default)]
struct Parameters {
    region: Option<String>,
    endpoint: Option<String>,
    style: Option<Style>,
}

impl Parameters {
    fn read(query: &str) -> Result<Self, SettingsError> {
        let mut parameters = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let value = value.into_owned();
            let is_second = match &*name {
                "region" => parameters.region.replace(region(value)?).is_some(),
                "endpoint" => parameters.endpoint.replace(endpoint(&value)?).is_some(),
                "style" => parameters.style.replace(style(&value)?).is_some(),
                _ => return Err(SettingsError::Parameter(name.into_owned())),
            };
            if is_second {
                return Err(SettingsError::Twice(name.into_owned()));
            }
        }
        Ok(parameters)
    }
}

fn region(value: String) -> Result<String, SettingsError> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if value.is_empty() || !value.bytes().all(is_word) {
        return Err(SettingsError::Region(value));
    }
    Ok(value)
}

fn endpoint(value: &str) -> Result<String, SettingsError> {
    let full = if value.contains("://") {
        value.to_owned()
    } else {
        format!("https://{value}")
    };
    checked_endpoint(&full)?;
    Ok(full.trim_end_matches('/').to_owned())
}

fn style(value: &str) -> Result<Style, SettingsError> {
    match value {
        "path" => Ok(Style::Path),
        "virtual" => Ok(Style::VirtualHosted),
        _ => Err(SettingsError::Style(value.to_owned())),
    }
}

fn checked_endpoint(text: &str) -> Result<Url, SettingsError> {
    let refused = || SettingsError::Endpoint(without_login(text));
    let url = Url::parse(text).ok().ok_or_else(refused)?;
    let is_http = matches!(url.scheme(), "http" | "https");
    let is_bare = url.query().is_none() && url.fragment().is_none();
    let has_login = !url.username().is_empty() || url.password().is_some();
    if has_login {
        return Err(SettingsError::Login);
    }
    if is_http && is_bare && url.has_host() {
        Ok(url)
    } else {
        Err(refused())
    }
}

/// Removes what stands before an `@`, which may be a secret.
fn without_login(text: &str) -> String {
    text.rsplit('@').next().unwrap_or_default().to_owned()
}

fn is_bucket_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (3..=63).contains(&name.len()) && name.bytes().all(is_allowed) && !name.contains("..")
}

fn normal_prefix(prefix: &str) -> Result<String, SettingsError> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(String::new());
    }
    let is_segment = |segment: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed)
    };
    if prefix.split('/').all(is_segment) {
        Ok(format!("{prefix}/"))
    } else {
        Err(SettingsError::Prefix(prefix.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(url: &str) -> SettingsError {
        Settings::parse(url).unwrap_err()
    }

    #[test]
    fn the_shortest_url_is_of_amazon() {
        let settings = Settings::parse("s3://nix-cache").unwrap();
        assert_eq!(settings.prefix, "");
        assert_eq!(settings.style, Style::VirtualHosted);
        let url = settings.endpoint_url().unwrap();
        assert_eq!(url.as_str(), "https://s3.us-east-1.amazonaws.com/");
        let dotted = Settings::parse("s3://nix.cache?region=cn-north-1").unwrap();
        assert_eq!(dotted.style, Style::Path);
        let url = dotted.endpoint_url().unwrap();
        assert_eq!(url.as_str(), "https://s3.cn-north-1.amazonaws.com.cn/");
    }

    #[test]
    fn parameters_are_read() {
        let url = "s3://b_1/a/b/?endpoint=http%3A%2F%2F127.0.0.1:9000/&region=garage&style=virtual";
        let settings = Settings::parse(url).unwrap();
        assert_eq!(settings.prefix, "a/b/");
        assert_eq!(settings.region, "garage");
        assert_eq!(settings.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(settings.style, Style::VirtualHosted);
    }

    #[test]
    fn a_wrong_url_is_refused_with_its_reason() {
        assert_eq!(refused("https://b"), SettingsError::Form);
        assert_eq!(refused("s3://bucket#x"), SettingsError::Form);
        assert_eq!(refused("s3://u:p@bucket"), SettingsError::Login);
        assert_eq!(refused("s3://ab"), SettingsError::Bucket("ab".to_owned()));
        assert_eq!(
            refused("s3://abc/../x"),
            SettingsError::Prefix("../x".to_owned())
        );
        assert_eq!(
            refused("s3://abc/a//b"),
            SettingsError::Prefix("a//b".to_owned())
        );
        assert_eq!(
            refused("s3://abc?profile=x"),
            SettingsError::Parameter("profile".to_owned())
        );
        assert_eq!(
            refused("s3://abc?region=a&region=b"),
            SettingsError::Twice("region".to_owned())
        );
        assert_eq!(
            refused("s3://abc?region="),
            SettingsError::Region(String::new())
        );
        assert_eq!(
            refused("s3://abc?style=dns"),
            SettingsError::Style("dns".to_owned())
        );
        assert_eq!(
            refused("s3://abc?endpoint=ftp://x"),
            SettingsError::Endpoint("ftp://x".to_owned())
        );
        assert_eq!(
            refused("s3://abc?endpoint=https://u:secret@x"),
            SettingsError::Login
        );
    }
}
