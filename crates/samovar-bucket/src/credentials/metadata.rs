//! Credentials of a role: of a container, or of a machine, by a metadata service.
//!
//! # Source
//!
//! Amazon's SDK reference, "Container credential provider" and "IMDS credential provider"; EC2 user
//! guide, "Use the Instance Metadata Service" (version 2: a token first, by PUT).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::http::Request;
use url::{Host, Url};

use crate::credentials::environment::Environment;
use crate::credentials::login::Found;
use crate::source::CredentialError;

/// A service on the machine's own link answers at once, or is not there.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Number of requests to a service, of which one must be answered.
const ATTEMPTS: u32 = 3;

/// Maximum length of an answer, in bytes.
const ANSWER_LEN_MAX: u64 = 64 << 10;

const CONTAINER_HOST: &str = "http://169.254.170.2";
const MACHINE_HOST: &str = "http://169.254.169.254";

/// Addresses to which a container's token may be sent without TLS, beside those of the machine
/// itself: of ECS, and of EKS.
const CONTAINER_ADDRESSES: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];

/// A request to a service that gives credentials.
pub(super) struct Ask<'a> {
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) url: &'a str,
    pub(super) headers: &'a [(&'static str, &'a str)],
    pub(super) body: &'a str,
    pub(super) time: Duration,
}

/// Asks the service of a container, if the environment names one.
pub(super) fn of_container(
    agent: &Agent,
    environment: &Environment,
) -> Result<Option<Found>, CredentialError> {
    const SERVICE: &str = "the credential service of the container";
    const FULL: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    let relative = environment.value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let url = match (relative, environment.value(FULL)) {
        (Some(path), _) => format!("{CONTAINER_HOST}{path}"),
        (None, Some(url)) if is_near(url) => url.to_owned(),
        (None, Some(_)) => {
            return Err(CredentialError::Variable {
                name: FULL,
                what: "must be an https URL, or one of this machine",
            });
        }
        (None, None) => return Ok(None),
    };
    let token = container_token(environment)?;
    let headers = token.as_deref().map(|token| [("authorization", token)]);
    let ask = Ask {
        service: SERVICE,
        method: "GET",
        url: &url,
        headers: headers.as_ref().map_or(&[], |headers| headers.as_slice()),
        body: "",
        time: ANSWER_TIME,
    };
    let answer = ask.answer(agent)?;
    credentials(SERVICE, &answer).map(Some)
}

/// Asks the metadata service of a machine at Amazon.
pub(super) fn of_machine(
    agent: &Agent,
    environment: &Environment,
) -> Result<Found, CredentialError> {
    const SERVICE: &str = "the metadata service of the machine";
    let host = environment.value("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let host = host.unwrap_or(MACHINE_HOST).trim_end_matches('/');
    let asked = |method, path: &str, header: (&'static str, &str)| {
        let ask = Ask {
            service: SERVICE,
            method,
            url: &format!("{host}{path}"),
            headers: &[header],
            body: "",
            time: ANSWER_TIME,
        };
        ask.answer(agent)
    };
    let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    let token = match asked("PUT", "/latest/api/token", lifetime) {
        // Not a machine at Amazon, and no other source has credentials.
        Err(CredentialError::Unreachable { .. }) => return Err(CredentialError::None),
        other => other?,
    };
    let token = ("x-aws-ec2-metadata-token", token.trim());
    let path = "/latest/meta-data/iam/security-credentials/";
    let roles = asked("GET", path, token)?;
    let role = roles.lines().next().unwrap_or_default().trim();
    let answer = asked("GET", &format!("{path}{role}"), token)?;
    credentials(SERVICE, &answer)
}

impl Ask<'_> {
    /// Sends the request until it is answered, and returns the text of a success.
    pub(super) fn answer(&self, agent: &Agent) -> Result<String, CredentialError> {
        let mut attempt = 1;
        loop {
            let answered = self.once(agent);
            let is_last = attempt == ATTEMPTS;
            match answered {
                Err(error) if error.is_transient() && !is_last => {
                    std::thread::sleep(Duration::from_millis(100).mul_f64(fastrand::f64()));
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn once(&self, agent: &Agent) -> Result<String, CredentialError> {
        let unreachable = |source| CredentialError::Unreachable {
            service: self.service,
            source: Arc::new(source),
        };
        let mut builder = Request::builder().method(self.method).uri(self.url);
        for (name, value) in self.headers {
            builder = builder.header(*name, *value);
        }
        // A PUT has a length, even if it has no body.
        let request = builder.body(self.body);
        let request = request
            .ok()
            .ok_or_else(|| unreachable(io::ErrorKind::InvalidInput.into()))?;
        let configured = agent
            .configure_request(request)
            .timeout_global(Some(self.time))
            .build();
        let mut response = match self.method {
            "GET" => agent.run(without_body(configured)),
            _ => agent.run(configured),
        }
        .map_err(|error| unreachable(error.into_io()))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_LEN_MAX);
        let text = body.read_to_string();
        let text = text.map_err(|error| unreachable(error.into_io()))?;
        if status.is_success() {
            return Ok(text);
        }
        Err(CredentialError::Refused {
            service: self.service,
            status: status.as_u16(),
            code: crate::xml::element(&text, "Code").unwrap_or_default(),
        })
    }
}

fn without_body(request: Request<&str>) -> Request<()> {
    request.map(|_| ())
}

/// Reads credentials in JSON, as both services give them.
fn credentials(service: &'static str, text: &str) -> Result<Found, CredentialError> {
    let none = || CredentialError::Refused {
        service,
        status: 200,
        code: String::new(),
    };
    let answer: serde_json::Value = serde_json::from_str(text).ok().ok_or_else(none)?;
    let field = |name: &str| answer.get(name).and_then(serde_json::Value::as_str);
    let (key_id, secret) = (field("AccessKeyId"), field("SecretAccessKey"));
    let (key_id, secret) = key_id.zip(secret).ok_or_else(none)?;
    Ok(Found {
        expires_at: field("Expiration").and_then(unix_time),
        ..Found::keys(key_id, secret, field("Token"))
    })
}

/// Reads a time as in `2026-11-30T01:34:12Z`, in seconds since 1970.
pub(super) fn unix_time(text: &str) -> Option<i64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(time.as_second())
}

/// Returns what authorizes a container.
fn container_token(environment: &Environment) -> Result<Option<String>, CredentialError> {
    let Some(file) = environment.value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") else {
        let token = environment.value("AWS_CONTAINER_AUTHORIZATION_TOKEN");
        return Ok(token.map(str::to_owned));
    };
    let token = std::fs::read_to_string(file).map_err(|source| CredentialError::Unreadable {
        file: file.into(),
        source: Arc::new(source),
    })?;
    Ok(Some(token.trim().to_owned()))
}

/// Whether a token may be sent to this URL.
fn is_near(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let is_own = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    url.scheme() == "https"
        || url.scheme() == "http" && (is_own || CONTAINER_ADDRESSES.contains(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_only_sent_by_tls_or_nearby() {
        for near in [
            "https://example.org/x",
            "http://127.0.0.1:80/x",
            "http://localhost/x",
            "http://[::1]/x",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
        ] {
            assert!(is_near(near), "{near}");
        }
        for far in [
            "http://example.org/x",
            "http://10.0.0.1/x",
            "ftp://localhost/",
            "x",
        ] {
            assert!(!is_near(far), "{far}");
        }
    }

    #[test]
    fn a_time_is_read() {
        assert_eq!(unix_time("2026-11-30T01:34:12Z"), Some(1_796_002_452));
        assert_eq!(unix_time("soon"), None);
    }
}
