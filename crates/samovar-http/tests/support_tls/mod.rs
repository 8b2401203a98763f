#![expect(clippy::unwrap_used, reason = "a test helper fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]
//! Test certificates, and a TLS client that shares no code with the server.

use std::net::{SocketAddr, TcpStream};
use std::ops::Add as _;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use samovar_http::tls::{TlsBuilder, TlsConfig};

pub(crate) type Client = StreamOwned<ClientConnection, TcpStream>;

/// A certificate authority that signs the certificates of a test.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its private key, in PEM.
pub(crate) struct Pair {
    pub(crate) chain: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Self { issuer }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn sign(&self, names: &[&str]) -> Pair {
        self.sign_with(names, |_| {})
    }

    /// Signs a certificate that is valid for this long.
    pub(crate) fn sign_for(&self, names: &[&str], validity: Duration) -> Pair {
        self.sign_with(names, |params| {
            params.not_after = std::time::SystemTime::now().add(validity).into();
        })
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<String> = names.iter().copied().map(String::from).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair {
            chain: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }

    pub(crate) fn client(&self) -> Connector {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Connector {
            roots,
            versions: vec![&rustls::version::TLS13, &rustls::version::TLS12],
            name: "a.test",
            alpn: Vec::new(),
            pair: None,
        }
    }
}

impl Pair {
    pub(crate) fn builder(&self) -> TlsBuilder {
        TlsConfig::builder().certificate_pem(self.chain.as_bytes(), self.key.as_bytes())
    }

    pub(crate) fn add_to(&self, builder: TlsBuilder) -> TlsBuilder {
        builder.certificate_pem(self.chain.as_bytes(), self.key.as_bytes())
    }

    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }
}

/// Settings of a TLS client connection.
pub(crate) struct Connector {
    roots: RootCertStore,
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    pub(crate) name: &'static str,
    pub(crate) alpn: Vec<&'static str>,
    pair: Option<(CertificateDer<'static>, Vec<u8>)>,
}

impl Connector {
    pub(crate) fn only(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }

    pub(crate) fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    pub(crate) fn speaking(mut self, alpn: &[&'static str]) -> Self {
        self.alpn = alpn.to_vec();
        self
    }

    pub(crate) fn with(mut self, pair: &Pair) -> Self {
        self.pair = Some((pair.der.clone(), pair.key_der.clone()));
        self
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let mut config = match &self.pair {
            None => builder.with_no_client_auth(),
            Some((der, key)) => {
                let key = PrivateKeyDer::try_from(key.clone()).unwrap();
                builder
                    .with_client_auth_cert(vec![der.clone()], key)
                    .unwrap()
            }
        };
        config.alpn_protocols = self
            .alpn
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        Arc::new(config)
    }

    /// Connects. The first read or write performs the TLS handshake.
    pub(crate) fn open(&self, addr: SocketAddr) -> Client {
        open_with(self.config(), self.name, addr)
    }

    /// Connects and completes the TLS handshake.
    pub(crate) fn connect(&self, addr: SocketAddr) -> std::io::Result<Client> {
        let mut client = self.open(addr);
        while client.conn.is_handshaking() {
            client.conn.complete_io(&mut client.sock)?;
        }
        Ok(client)
    }
}

pub(crate) fn open_with(config: Arc<ClientConfig>, name: &'static str, addr: SocketAddr) -> Client {
    let socket = TcpStream::connect(addr).unwrap();
    let patience = Some(Duration::from_secs(60));
    socket.set_read_timeout(patience).unwrap();
    socket.set_write_timeout(patience).unwrap();
    let name = ServerName::try_from(name).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket)
}
