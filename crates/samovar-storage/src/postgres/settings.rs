//! [`PostgresSettings`]: where the PostgreSQL database is, and how to connect to it.
//!
//! The URL has the form of libpq:
//! `postgresql://user@host1,host2:5432/database?sslmode=verify-full`. Several hosts are tried in
//! order, and the first one that accepts writes is used. Without a host, the socket of this
//! machine's server is used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::tls::{Certificates, Verification};

/// Socket directory of Debian's server, the default for a URL without a host.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// Port of a host without one.
const PORT: u16 = 5432;

/// PostgreSQL schema of the tables, unless `search_path` in `options` names another.
const SCHEMA_NAME: &str = "samovar";

/// Maximum time to connect to one host, handshakes and login included, unless `connect_timeout`
/// says otherwise.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Time without traffic after which the kernel asks whether the other side is still there, the
/// interval of further questions, and their number.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Maximum time for which sent data may stay unacknowledged by the network.
const UNACKNOWLEDGED_TIME: Duration = Duration::from_secs(10);

/// The settings of a PostgreSQL database.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresSettings {
    /// One configuration for each host.
    pub(crate) hosts: Vec<Config>,
    pub(crate) certificates: Certificates,
    pub(crate) connect_time: Duration,
    /// Name of the PostgreSQL schema.
    pub(crate) schema: String,
    /// The URL without user, password and parameters, for messages.
    place: String,
}

/// The reason why settings of PostgreSQL are refused. Does not contain the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostgresSettingsError {
    /// The text is not a URL of PostgreSQL.
    #[error("not a URL of a PostgreSQL database: write postgresql://user@host:5432/database")]
    NotAUrl,
    /// The client library refuses the URL.
    #[error("cannot read the URL of the database: {0}")]
    Malformed(String),
    /// A parameter has a value that is not supported.
    #[error("the URL of the database has {0}={1}: write {2}")]
    Value(&'static str, String, &'static str),
    /// Other parameters of TLS contradict `sslmode`.
    #[error("the URL of the database has {0}, which sslmode=disable does not use: leave one out")]
    UnusedCertificate(&'static str),
    /// Only one of the two files of a client certificate is stated.
    #[error("the URL of the database has one of sslcert and sslkey: state both")]
    HalfCertificate,
    /// The file of the password cannot be read.
    #[error("cannot read the password of the database in {0:?}: {1}")]
    PasswordFile(PathBuf, String),
}

impl PostgresSettings {
    /// Parses a URL as libpq does. A password in the environment variable `PGPASSWORD` is used if
    /// the URL has none.
    ///
    /// # Errors
    ///
    /// Any [`PostgresSettingsError`].
    pub fn parse(url: &str) -> Result<Self, PostgresSettingsError> {
        let password = std::env::var("PGPASSWORD").ok();
        Self::with_password(url, password.filter(|password| !password.is_empty()))
    }

    /// Parses a URL. Uses `password` if the URL has none.
    fn with_password(url: &str, password: Option<String>) -> Result<Self, PostgresSettingsError> {
        let scheme = ["postgresql://", "postgres://"];
        if !scheme.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(PostgresSettingsError::NotAUrl);
        }
        let (rest, tls) = TlsParameters::split(url)?;
        let parsed: Result<Config, _> = rest.parse();
        let mut config = parsed.map_err(|error| malformed(&error))?;
        if let (None, Some(password)) = (config.get_password(), password) {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("samovar");
        }
        let schema = schema_name(config.get_options().unwrap_or_default())?;
        let connect_time = config.get_connect_timeout().copied();
        config.ssl_mode(tls.mode);
        let hosts = hosts(&config);
        let place = place(&hosts);
        Ok(Self {
            hosts: hosts
                .into_iter()
                .map(|host| host.into_config(&config))
                .collect(),
            certificates: tls.certificates()?,
            connect_time: connect_time.unwrap_or(CONNECT_TIME),
            schema,
            place,
        })
    }

    /// Uses the password in a file, without the newline at its end.
    ///
    /// # Errors
    ///
    /// [`PostgresSettingsError::PasswordFile`].
    pub fn read_password(&mut self, file: &Path) -> Result<(), PostgresSettingsError> {
        let failed = |reason: String| PostgresSettingsError::PasswordFile(file.to_owned(), reason);
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(failed("it is empty".to_owned()));
        }
        for config in &mut self.hosts {
            config.password(password);
        }
        Ok(())
    }
}

/// Without user, password and parameters.
impl fmt::Display for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresSettings")
            .field(&self.place)
            .finish()
    }
}

/// The parameters of TLS, which the client library does not know or reads otherwise than libpq.
struct TlsParameters {
    mode: SslMode,
    verification: Option<Verification>,
    root: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsParameters {
    /// Reads them from a URL. Also returns the URL without them.
    fn split(url: &str) -> Result<(String, Self), PostgresSettingsError> {
        let mut tls = Self {
            mode: SslMode::Prefer,
            verification: None,
            root: None,
            certificate: None,
            key: None,
        };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut rest = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
            match key {
                "sslmode" => tls.set_mode(&value)?,
                "sslrootcert" => tls.root = path(&value),
                "sslcert" => tls.certificate = path(&value),
                "sslkey" => tls.key = path(&value),
                "target_session_attrs" => check_target(&value)?,
                _ => rest.push(parameter),
            }
        }
        let rest = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        Ok((rest, tls))
    }

    fn set_mode(&mut self, value: &str) -> Result<(), PostgresSettingsError> {
        (self.mode, self.verification) = match value {
            "disable" => (SslMode::Disable, None),
            "allow" | "prefer" => (SslMode::Prefer, None),
            "require" => (SslMode::Require, None),
            "verify-ca" => (SslMode::Require, Some(Verification::Authority)),
            "verify-full" => (SslMode::Require, Some(Verification::AuthorityAndName)),
            _ => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(PostgresSettingsError::Value(
                    "sslmode",
                    value.to_owned(),
                    known,
                ));
            }
        };
        Ok(())
    }

    fn certificates(self) -> Result<Certificates, PostgresSettingsError> {
        let files = [
            ("sslrootcert", &self.root),
            ("sslcert", &self.certificate),
            ("sslkey", &self.key),
        ];
        let stated = files.iter().find(|(_, file)| file.is_some());
        if let (SslMode::Disable, Some((name, _))) = (self.mode, stated) {
            return Err(PostgresSettingsError::UnusedCertificate(name));
        }
        let client = match (self.certificate, self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(PostgresSettingsError::HalfCertificate),
        };
        let verification = match (self.verification, self.mode, &self.root) {
            // As in libpq.
            (None, SslMode::Require, Some(_)) => Verification::Authority,
            (verification, ..) => verification.unwrap_or(Verification::None),
        };
        Ok(Certificates {
            verification,
            root: self.root,
            client,
        })
    }
}

fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// All connections need a server that accepts writes.
fn check_target(value: &str) -> Result<(), PostgresSettingsError> {
    match value {
        "read-write" | "primary" | "any" => Ok(()),
        _ => Err(PostgresSettingsError::Value(
            "target_session_attrs",
            value.to_owned(),
            "read-write, or leave it out",
        )),
    }
}

/// Returns the schema that `search_path` in the parameter `options` names.
fn schema_name(options: &str) -> Result<String, PostgresSettingsError> {
    let value = options.split_once("search_path=").map(|(_, value)| value);
    let Some(value) = value.and_then(|value| value.split_whitespace().next()) else {
        return Ok(SCHEMA_NAME.to_owned());
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    match value.bytes().all(is_plain) {
        true => Ok(value.to_owned()),
        false => Err(PostgresSettingsError::Value(
            "options=-csearch_path",
            value.to_owned(),
            "the name of one schema, of lower-case letters, digits and _",
        )),
    }
}

/// One of the hosts of a URL.
struct OneHost {
    host: Host,
    address: Option<std::net::IpAddr>,
    port: u16,
}

impl OneHost {
    /// Returns the configuration `all` with this host alone.
    fn into_config(self, all: &Config) -> Config {
        let mut config = Config::new();
        // The login, and what the session is to be called.
        if let Some(user) = all.get_user() {
            config.user(user);
        }
        if let Some(password) = all.get_password() {
            config.password(password);
        }
        if let Some(database) = all.get_dbname() {
            config.dbname(database);
        }
        if let Some(options) = all.get_options() {
            config.options(options);
        }
        if let Some(name) = all.get_application_name() {
            config.application_name(name);
        }
        match &self.host {
            Host::Tcp(name) => config.host(name),
            Host::Unix(directory) => config.host_path(directory),
        };
        if let Some(address) = self.address {
            config.hostaddr(address);
        }
        let (idle, interval, retries) = KEEPALIVE;
        config
            .port(self.port)
            .ssl_mode(all.get_ssl_mode())
            .ssl_negotiation(all.get_ssl_negotiation())
            .channel_binding(all.get_channel_binding())
            .keepalives_idle(idle)
            .keepalives_interval(interval)
            .keepalives_retries(retries)
            .tcp_user_timeout(UNACKNOWLEDGED_TIME);
        config
    }
}

fn hosts(config: &Config) -> Vec<OneHost> {
    let (names, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let count = names.len().max(addresses.len()).max(1);
    let one = |index: usize| {
        let address = addresses.get(index).copied();
        let host = match (names.get(index), address) {
            (Some(host), _) => host.clone(),
            (None, Some(address)) => Host::Tcp(address.to_string()),
            (None, None) => Host::Unix(PathBuf::from(SOCKET_DIRECTORY)),
        };
        let ports = config.get_ports();
        OneHost {
            host,
            address,
            port: *ports.get(index).or(ports.first()).unwrap_or(&PORT),
        }
    };
    (0..count).map(one).collect()
}

fn place(hosts: &[OneHost]) -> String {
    let one = |host: &OneHost| match &host.host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", host.port),
        Host::Tcp(name) => format!("{name}:{}", host.port),
        Host::Unix(directory) => format!("{}:{}", directory.display(), host.port),
    };
    hosts.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The sentence of the client library, which names a parameter, never a value.
fn malformed(error: &tokio_postgres::Error) -> PostgresSettingsError {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    PostgresSettingsError::Malformed(cause.unwrap_or_else(|| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<PostgresSettings, PostgresSettingsError> {
        PostgresSettings::with_password(url, None)
    }

    #[track_caller]
    fn check_refused(url: &str, expected: &str) {
        let message = parse(url).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn each_host_gets_its_own_configuration() {
        let settings = parse("postgresql://u:secret@a,[::1]:6000/d?application_name=n").unwrap();
        assert_eq!(settings.to_string(), "a:5432,[::1]:6000");
        assert!(!format!("{settings:?}").contains("secret"));
        let [first, second] = &settings.hosts[..] else {
            panic!("{settings:?}");
        };
        assert_eq!(first.get_hosts(), [Host::Tcp("a".to_owned())]);
        assert_eq!(second.get_ports(), [6000]);
        assert_eq!(second.get_password(), Some(&b"secret"[..]));
        assert_eq!(second.get_application_name(), Some("n"));
    }

    #[test]
    fn a_url_without_a_host_means_the_socket_of_this_machine() {
        let settings = parse("postgresql:///d").unwrap();
        assert_eq!(settings.to_string(), "/var/run/postgresql:5432");
        let settings = parse("postgresql:///d?host=/run/p&port=1&user=u").unwrap();
        assert_eq!(settings.to_string(), "/run/p:1");
        assert_eq!(settings.hosts[0].get_user(), Some("u"));
    }

    #[test]
    fn a_password_of_the_environment_does_not_replace_the_one_in_the_url() {
        let password = |url: &str| {
            let settings = PostgresSettings::with_password(url, Some("other".to_owned())).unwrap();
            settings.hosts[0].get_password().map(<[u8]>::to_vec)
        };
        assert_eq!(password("postgresql://u:p@h/d"), Some(b"p".to_vec()));
        assert_eq!(password("postgresql://u@h/d"), Some(b"other".to_vec()));
    }

    #[test]
    fn the_password_of_a_file_ends_before_the_newline() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let mut settings = parse("postgresql://u@h/d").unwrap();
        assert!(settings.read_password(&file).is_err());
        std::fs::write(&file, "\n").unwrap();
        assert!(settings.read_password(&file).is_err());
        std::fs::write(&file, "a b \n").unwrap();
        settings.read_password(&file).unwrap();
        assert_eq!(settings.hosts[0].get_password(), Some(&b"a b "[..]));
    }

    #[test]
    fn the_modes_of_tls() {
        let check = |parameters: &str, mode, verification| {
            let settings = parse(&format!("postgresql://h/d?{parameters}")).unwrap();
            assert_eq!(settings.hosts[0].get_ssl_mode(), mode, "{parameters}");
            assert_eq!(
                settings.certificates.verification, verification,
                "{parameters}"
            );
        };
        check("", SslMode::Prefer, Verification::None);
        check("sslmode=disable", SslMode::Disable, Verification::None);
        check("sslmode=require", SslMode::Require, Verification::None);
        check(
            "sslmode=require&sslrootcert=/ca",
            SslMode::Require,
            Verification::Authority,
        );
        check(
            "sslmode=verify-ca",
            SslMode::Require,
            Verification::Authority,
        );
        check(
            "sslmode=verify-full",
            SslMode::Require,
            Verification::AuthorityAndName,
        );
        check_refused("postgresql://h/d?sslmode=on", "sslmode=on");
        check_refused(
            "postgresql://h/d?sslmode=disable&sslrootcert=/ca",
            "sslrootcert",
        );
        check_refused("postgresql://h/d?sslcert=/c", "sslkey");
    }

    #[test]
    fn the_schema_is_named_by_the_search_path() {
        let schema = |options: &str| {
            let settings = parse(&format!("postgresql://h/d?options={options}"));
            settings.map(|settings| settings.schema)
        };
        assert_eq!(parse("postgresql://h/d").unwrap().schema, "samovar");
        assert_eq!(schema("-c%20search_path%3Dteam_1").unwrap(), "team_1");
        assert_eq!(
            schema("-csearch_path%3Dteam%20-cjit%3Doff").unwrap(),
            "team"
        );
        assert!(schema("-csearch_path%3Da%2Cb").is_err());
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_the_password() {
        check_refused("host=a password=secret", "postgresql://");
        check_refused("mysql://u:secret@h/d", "postgresql://");
        check_refused("postgresql://u:secret@h/d?colour=red", "colour");
        check_refused("postgresql://u:secret@h:x/d", "port");
        check_refused(
            "postgresql://u:secret@h/d?target_session_attrs=standby",
            "read-write",
        );
    }
}
