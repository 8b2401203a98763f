//! TLS to PostgreSQL: which certificates are trusted, as with the parameters of libpq.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// What is verified of the certificate of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verification {
    /// Nothing: somebody between this machine and the server can read and change all.
    None,
    /// A trusted authority has issued it.
    Authority,
    /// A trusted authority has issued it, for the name of the host in the URL.
    AuthorityAndName,
}

/// The files of certificates, and how the server's certificate is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificates {
    pub(super) verification: Verification,
    /// File with trusted authorities. `None`: those of this machine.
    pub(super) root: Option<PathBuf>,
    /// Files of the client's certificate chain and of its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

impl Certificates {
    /// Reads the files, which may have been replaced since the last connection.
    pub(crate) fn connector(&self) -> io::Result<Tls> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(provider)?);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let failed = |error| explained(key, "no private key", &error);
                let key = PrivateKeyDer::from_pem_file(key).map_err(failed)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(io::Error::other)?
            }
        };
        Ok(Tls(Arc::new(config)))
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> io::Result<Arc<dyn ServerCertVerifier>> {
        if self.verification == Verification::None {
            let authorities = None;
            return Ok(Arc::new(AnyName {
                provider,
                authorities,
            }));
        }
        let root = match &self.root {
            Some(root) => root.clone(),
            None => authorities_of_this_machine()?,
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&root)?);
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = builder
            .build()
            .map_err(|error| io::Error::other(format!("{root:?}: {error}")))?;
        Ok(match self.verification {
            Verification::AuthorityAndName => verifier,
            _ => Arc::new(AnyName {
                provider,
                authorities: Some(verifier),
            }),
        })
    }
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let failed = |error| explained(file, "no certificates", &error);
    let found = CertificateDer::pem_file_iter(file)
        .map_err(failed)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    match found.is_empty() {
        false => Ok(found),
        true => Err(io::Error::other(format!("{file:?} has no certificates"))),
    }
}

fn explained(file: &Path, missing: &str, error: &rustls::pki_types::pem::Error) -> io::Error {
    use rustls::pki_types::pem::Error;
    io::Error::other(match error {
        Error::Io(error) => format!("cannot read {file:?}: {error}"),
        _ => format!("{file:?} has {missing} in the form of PEM"),
    })
}

/// Returns the file of the authorities that this machine trusts.
fn authorities_of_this_machine() -> io::Result<PathBuf> {
    let stated = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let usual = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    ];
    let found = || usual.iter().map(PathBuf::from).find(|file| file.exists());
    stated.map(PathBuf::from).or_else(found).ok_or_else(|| {
        io::Error::other("no trusted certificates found: state sslrootcert in the URL")
    })
}

/// Verifies less than the usual: the server must have the key of its certificate, which may be for
/// any name.
#[derive(Debug)]
struct AnyName {
    provider: Arc<CryptoProvider>,
    /// What verifies that a trusted authority has issued the certificate. `None`: nothing does.
    authorities: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let outcome = authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match outcome {
            // The name is compared last: all else is right.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Makes TLS connections for the client library.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake {
            config: Arc::clone(&self.0),
            host: host.to_owned(),
        })
    }
}

/// A TLS handshake with a host.
pub(crate) struct Handshake {
    config: Arc<ClientConfig>,
    host: String,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            let connector = TlsConnector::from(self.config);
            Ok(Encrypted(connector.connect(name, stream).await?))
        })
    }
}

/// A TLS connection.
pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
