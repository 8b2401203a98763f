//! [`Fault`]: why a server cannot be reached, in the user's terms.

use std::io::{self, ErrorKind};

use rustls::{AlertDescription, CertificateError};
use ureq::Error;

use crate::remote::Remote;

/// The reason why a request got no response.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// A fragment such as "connection refused". A permanent fault also states the remedy.
    pub reason: String,
    /// Whether the same request may succeed later, without a change of the URL or of the server's
    /// settings.
    pub is_temporary: bool,
}

/// Returns whether the server was silent for too long.
pub fn is_timeout(error: &Error) -> bool {
    match error {
        Error::Timeout(_) => true,
        Error::Io(error) => error.kind() == ErrorKind::TimedOut,
        _ => false,
    }
}

/// Returns whether the server closed or reset the connection.
pub fn is_closed(error: &Error) -> bool {
    const CLOSED: [ErrorKind; 4] = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::BrokenPipe,
    ];
    matches!(error, Error::Io(error) if CLOSED.contains(&error.kind()))
}

impl Fault {
    /// Describes the failure of a request to `remote`.
    pub fn of(error: &Error, remote: &Remote) -> Self {
        match error {
            Error::Timeout(_) => Self::temporary("no answer in time"),
            Error::ConnectionFailed => Self::temporary("the connection failed"),
            Error::HostNotFound => Self::unknown_host(remote),
            Error::Rustls(error) => Self::of_tls(error, remote),
            Error::Io(error) => Self::of_io(error, remote),
            Error::Protocol(_) if remote.is_secure() => {
                Self::permanent("its answer is not HTTP: check the URL")
            }
            Error::Protocol(_) => Self::permanent(format!(
                "its answer is not HTTP: if the server speaks TLS, use {}",
                remote.origin_with("https")
            )),
            Error::TooManyRedirects => {
                Self::permanent("it redirects the request too often: check the URL")
            }
            Error::RedirectFailed => {
                Self::permanent("it redirects the request to another URL: use that URL")
            }
            other => Self::permanent(other.to_string()),
        }
    }

    fn of_io(error: &io::Error, remote: &Remote) -> Self {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return Self::of_tls(error, remote);
        }
        let text = error.to_string();
        Self::temporary(match error.kind() {
            ErrorKind::ConnectionRefused => "connection refused",
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                "connection reset"
            }
            ErrorKind::UnexpectedEof => "the server closed the connection",
            ErrorKind::HostUnreachable => "no route to the host",
            ErrorKind::NetworkUnreachable => "no route to the network",
            ErrorKind::TimedOut => "no answer in time",
            // The standard library has no kind for errors of name resolution. The texts are those
            // of EAI_NONAME in glibc and musl; other errors, such as EAI_AGAIN, are temporary.
            _ if text.ends_with("Name or service not known")
                || text.ends_with("Name does not resolve") =>
            {
                return Self::unknown_host(remote);
            }
            _ if text.starts_with("failed to lookup address") => "the host name cannot be resolved",
            _ => &text,
        })
    }

    fn of_tls(error: &rustls::Error, remote: &Remote) -> Self {
        use rustls::Error;
        Self::permanent(match error {
            Error::InvalidMessage(_) => format!(
                "the server does not speak TLS: use {}",
                remote.origin_with("http")
            ),
            Error::InvalidCertificate(error) => of_certificate(error, remote),
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "the server requires a client certificate: give one to samovar doctor by \
                 --client-certificate, or to Nix in the URL (tls-certificate); other commands \
                 cannot send one"
                    .to_owned()
            }
            Error::AlertReceived(_) | Error::PeerIncompatible(_) => {
                "the server refused the TLS handshake: check its TLS versions and cipher suites"
                    .to_owned()
            }
            other => format!("TLS failed: {other}"),
        })
    }

    fn unknown_host(remote: &Remote) -> Self {
        Self::permanent(format!(
            "there is no host {:?}: check the name",
            remote.host()
        ))
    }

    fn temporary(reason: &str) -> Self {
        Self {
            reason: reason.to_owned(),
            is_temporary: true,
        }
    }

    fn permanent(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_temporary: false,
        }
    }
}

fn of_certificate(error: &CertificateError, remote: &Remote) -> String {
    match error {
        // `BadSignature`: the issuer has the name of a trusted one, but another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "this machine does not trust the issuer of the server's certificate: add the issuer to \
             the PEM file that NIX_SSL_CERT_FILE names"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: ask its operator for a new one".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: check the clock of this machine".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the server's certificate is not for {:?}: use the name in the certificate",
                remote.host()
            )
        }
        _ => "the server's certificate is not valid: ask its operator for another one".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    #[track_caller]
    fn check(error: &Error, url: &str, is_temporary: bool, reason: &str) {
        let remote = Remote::parse(url).unwrap();
        let expected = Fault {
            reason: reason.to_owned(),
            is_temporary,
        };
        assert_eq!(Fault::of(error, &remote), expected);
    }

    fn of_text(text: &str) -> Error {
        Error::Io(io::Error::other(text))
    }

    #[test]
    fn faults_that_waiting_may_heal() {
        let url = "http://a";
        let refused = io::Error::from_raw_os_error(111);
        check(&Error::Io(refused), url, true, "connection refused");
        let closed = io::Error::new(ErrorKind::UnexpectedEof, "Peer disconnected");
        check(
            &Error::Io(closed),
            url,
            true,
            "the server closed the connection",
        );
        let lookup = "failed to lookup address information: Temporary failure in name resolution";
        check(
            &of_text(lookup),
            url,
            true,
            "the host name cannot be resolved",
        );
    }

    #[test]
    fn faults_that_end_at_once_state_the_remedy() {
        let tls = |error| Error::Io(io::Error::new(ErrorKind::InvalidData, error));
        check(
            &tls(rustls::Error::InvalidMessage(
                InvalidMessage::InvalidContentType,
            )),
            "https://u:p@a:5000/b",
            false,
            "the server does not speak TLS: use http://a:5000",
        );
        check(
            &tls(CertificateError::NotValidForName.into()),
            "https://a.b/c",
            false,
            "the server's certificate is not for \"a.b\": use the name in the certificate",
        );
        for text in ["Name or service not known", "Name does not resolve"] {
            check(
                &of_text(&format!("failed to lookup address information: {text}")),
                "http://a.b:5000/c",
                false,
                "there is no host \"a.b\": check the name",
            );
        }
    }
}
