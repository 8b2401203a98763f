//! [`ExchangedToken`]: the token that a CI job gets for its ID token, and its renewal.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use samovar_protocol::oidc::{Exchange, Exchanged};

use crate::http::{Http, Patience, read_body};
use crate::id_token::IdTokenSource;
use crate::notice::notice;
use crate::plain_http::check_plain;
use crate::remote::{Remote, Renew};

/// Maximum length of the answer to an exchange, in bytes.
const ANSWER_LEN_MAX: u64 = 4 << 10;

/// Minimum time between two attempts to renew a token, of which the first has failed.
const PAUSE: Duration = Duration::from_secs(30);

/// A token of a cache that a job has got for its ID token. Requests renew it when a third of its
/// time is left.
pub struct ExchangedToken {
    source: IdTokenSource,
    audience: String,
    /// The URL of the exchange, without a login.
    remote: Remote,
    state: Mutex<State>,
}

struct State {
    token: String,
    /// Time from which on requests renew the token.
    renew_at: Instant,
}

/// Shows no secret.
impl fmt::Debug for ExchangedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangedToken").finish_non_exhaustive()
    }
}

impl ExchangedToken {
    /// Exchanges the ID token of this job for a token of the cache at `remote`.
    ///
    /// `audience`: of the ID token; `None`: the URL of the server, without a path.
    ///
    /// # Errors
    ///
    /// There is no ID token, it would be sent unencrypted, or the cache refuses it.
    pub fn new(
        remote: &Remote,
        source: IdTokenSource,
        audience: Option<&str>,
    ) -> anyhow::Result<Arc<Self>> {
        check_plain(remote, "the ID token")?;
        let audience = audience.unwrap_or(remote.origin()).to_owned();
        let url = format!("{}/upload/oidc", remote.url());
        let remote = remote.without_login().at(url);
        let exchanged = exchange(&remote, Patience::SETUP, &source, &audience, None)?;
        Ok(Arc::new(Self {
            state: Mutex::new(State::of(exchanged)),
            source,
            audience,
            remote,
        }))
    }

    /// Returns the token.
    pub fn token(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.token.clone()
    }
}

impl Renew for ExchangedToken {
    fn authorization(&self) -> String {
        // One thread renews the token, while the others wait.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= state.renew_at {
            let renewed = Some(state.token.clone());
            let (source, audience) = (&self.source, &self.audience);
            match exchange(&self.remote, Patience::QUERY, source, audience, renewed) {
                Ok(exchanged) => *state = State::of(exchanged),
                Err(error) => {
                    notice(&format!(
                        "the token of this job cannot be renewed: {error:#}"
                    ));
                    state.renew_at = Instant::now() + PAUSE;
                }
            }
        }
        format!("Bearer {}", state.token)
    }
}

impl State {
    fn of(exchanged: Exchanged) -> Self {
        let valid_for = Duration::from_secs(exchanged.valid_for_s.min(3600));
        Self {
            token: exchanged.token,
            renew_at: Instant::now() + valid_for * 2 / 3,
        }
    }
}

/// Sends a request for an exchange. `renewed`: the token to extend.
fn exchange(
    remote: &Remote,
    patience: Patience,
    source: &IdTokenSource,
    audience: &str,
    renewed: Option<String>,
) -> anyhow::Result<Exchanged> {
    let id_token = source.get(audience)?;
    let mut remote = remote.clone();
    remote.authorize(
        format!("Bearer {id_token}"),
        "the ID token of this job".to_owned(),
    );
    let http = Http::new(remote, patience)?;
    let response = http.post("", Exchange { renewed }.text().as_bytes())?;
    if response.status() != 200 {
        return Err(http.refused("the ID token", response));
    }
    let text = read_body(response, ANSWER_LEN_MAX)?;
    let text = String::from_utf8_lossy(&text);
    let exchanged = Exchanged::parse(&text);
    exchanged.with_context(|| format!("{} gave no token for the ID token", http.remote()))
}
