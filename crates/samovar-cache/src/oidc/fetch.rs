//! Requests to an issuer: its description, and its keys.

use std::time::{Duration, Instant, SystemTime};

use samovar_client::http::{Http, read_body};
use samovar_client::remote::Remote;
use samovar_oidc::discovery::{self, DESCRIPTION_LEN_MAX};
use samovar_oidc::keys::{KEYS_LEN_MAX, KeySet};

use super::settings::IssuerSettings;

/// Maximum time of one request with its response.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(8);

/// What an issuer has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerAnswer {
    /// The keys.
    pub keys: KeySet,
    /// Time of both requests together.
    pub time: Duration,
    /// The time by the clock of the issuer, and by the clock of this machine; `None` if the
    /// response does not state it.
    pub clocks: Option<(SystemTime, SystemTime)>,
}

/// Requests description and keys of an issuer once, as the server does.
///
/// # Errors
///
/// A fragment: why the issuer cannot be used.
pub fn ask_issuer(settings: &IssuerSettings) -> Result<IssuerAnswer, String> {
    fetch(&client(settings)?, &settings.issuer)
}

/// Returns a client of an issuer.
pub(super) fn client(settings: &IssuerSettings) -> Result<Http, String> {
    // A slash at the end is left out before the path of the description (Discovery 1.0, 4).
    let remote = Remote::of_folder(&settings.issuer).map_err(|error| error.to_string())?;
    let client = Http::of_issuer(remote, settings.ca_file.as_deref(), REQUEST_TIME);
    client.map_err(|error| format!("{error:#}"))
}

/// Requests description and keys. `issuer`: its URL as in tokens.
pub(super) fn fetch(http: &Http, issuer: &str) -> Result<IssuerAnswer, String> {
    let start = Instant::now();
    let (text, clocks) = get(http, discovery::path(), DESCRIPTION_LEN_MAX)?;
    let url = discovery::keys_url(&text, issuer).map_err(|error| error.to_string())?;
    let (text, _) = get(&http.at(url), "", KEYS_LEN_MAX)?;
    let keys = KeySet::parse(&text).map_err(|error| error.to_string())?;
    Ok(IssuerAnswer {
        keys,
        time: start.elapsed(),
        clocks,
    })
}

type Clocks = Option<(SystemTime, SystemTime)>;

fn get(http: &Http, path: &str, len_max: u64) -> Result<(Vec<u8>, Clocks), String> {
    let url = http.url(path);
    let response = http.get_part(path, None);
    let response = response.map_err(|reason| format!("{url} cannot be requested: {reason}"))?;
    let status = response.status();
    if status.is_redirection() {
        return Err(format!(
            "{url} answered {status}: redirects are not followed"
        ));
    }
    if status != 200 {
        return Err(format!("{url} answered {status}"));
    }
    let field = |name| response.headers().get(name)?.to_str().ok();
    let date = field("Date").and_then(|date| httpdate::parse_http_date(date).ok());
    let age = field("Age").and_then(|age| age.trim().parse().ok());
    let date = date.and_then(|date| date.checked_add(Duration::from_secs(age.unwrap_or(0))));
    let clocks = date.map(|date| (date, SystemTime::now()));
    let text = read_body(response, len_max).map_err(|error| format!("{url}: {error:#}"))?;
    Ok((text, clocks))
}
