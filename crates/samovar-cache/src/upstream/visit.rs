//! [`Visit`]: single requests to an upstream for checks outside the server, sent by the HTTP client
//! that the server would use.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

use samovar_client::http::{Http, read_body};
use samovar_nix::{HashPart, StoreDir};
use samovar_upstream::settings::UpstreamSettings;
use ureq::http::Uri;

use crate::upstream::one::Upstream;
use crate::upstream::request::{self, Said, Trouble};

/// Maximum length of `nix-cache-info`, in bytes.
const INFO_LEN_MAX: u64 = 64 << 10;

/// A client of one upstream.
#[derive(Debug)]
pub struct Visit {
    http: Http,
    settings: UpstreamSettings,
}

/// What an upstream says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// Time until the head of the response.
    pub time: Duration,
    /// Status of the response.
    pub status: u16,
    /// The store directory; `None` if the response does not state it.
    pub store_dir: Option<String>,
    /// The time by the clock of the upstream, and by the clock of this machine; `None` if the
    /// response does not state it.
    pub clocks: Option<(SystemTime, SystemTime)>,
}

/// What an upstream has for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A narinfo that may be passed on.
    Trusted,
    /// Nothing.
    Absent,
    /// An answer that may not be passed on, for this reason, a fragment.
    Unusable(String),
    /// No answer, for this reason, a fragment.
    Down(String),
}

impl Visit {
    /// Prepares the client of an upstream, and reads its login. Sends no request.
    ///
    /// # Errors
    ///
    /// A sentence: the URL is invalid, or the file of the login cannot be used.
    pub fn prepare(settings: &UpstreamSettings) -> Result<Self, String> {
        Ok(Self {
            http: Upstream::client(settings)?,
            settings: settings.clone(),
        })
    }

    /// Returns the URL of the upstream, without a login.
    #[must_use]
    pub fn url(&self) -> &str {
        self.http.remote().url()
    }

    /// Returns the addresses of the upstream's host, with the port; none if they cannot be
    /// resolved.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let remote = self.http.remote();
        let port = remote.origin().parse::<Uri>().ok().and_then(|uri| {
            let default = if remote.is_secure() { 443 } else { 80 };
            Some(uri.authority()?.port_u16().unwrap_or(default))
        });
        let resolved = port.and_then(|port| (remote.host(), port).to_socket_addrs().ok());
        resolved.into_iter().flatten().collect()
    }

    /// Requests `nix-cache-info`.
    ///
    /// # Errors
    ///
    /// A fragment: why there is no response.
    pub fn info(&self) -> Result<CacheInfo, String> {
        let start = Instant::now();
        let response = self.http.get_part("/nix-cache-info", None)?;
        let (time, now) = (start.elapsed(), SystemTime::now());
        let status = response.status().as_u16();
        let field = |name| response.headers().get(name)?.to_str().ok();
        // A proxy that answers from its memory states the age of the response.
        let age = field("Age").and_then(|age| age.trim().parse().ok());
        let date = field("Date").and_then(|date| httpdate::parse_http_date(date).ok());
        let date = date.and_then(|date| date.checked_add(Duration::from_secs(age.unwrap_or(0))));
        let body = match status {
            200 => read_body(response, INFO_LEN_MAX).map_err(|error| error.to_string())?,
            _ => Vec::new(),
        };
        let text = String::from_utf8_lossy(&body);
        let store_dir = text
            .lines()
            .find_map(|line| line.strip_prefix("StoreDir:"))
            .map(|dir| dir.trim().to_owned());
        Ok(CacheInfo {
            time,
            status,
            store_dir,
            clocks: date.map(|date| (date, now)),
        })
    }

    /// Requests the narinfo of a path, as the server does.
    #[must_use]
    pub fn narinfo(&self, dir: &StoreDir, hash_part: HashPart) -> Held {
        match request::narinfo(&self.http, &self.settings, dir, hash_part) {
            Ok(Said::Found(_)) => Held::Trusted,
            Ok(Said::Absent) => Held::Absent,
            Err(Trouble::Unusable(reason)) => Held::Unusable(reason),
            Err(Trouble::Down(reason)) => Held::Down(reason),
        }
    }
}
