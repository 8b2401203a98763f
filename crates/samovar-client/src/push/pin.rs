//! Pins the pushed path on the server (`docs/pins.md`).

use samovar_nix::StorePath;
use samovar_protocol::names::PinName;
use samovar_protocol::pins::Put;

use super::session::answer;
use crate::http::{Http, Payload};
use crate::refs::{Expected, Refs, check_successor, conditional, generation, url};

/// Maximum number of attempts to pin a path while other clients change the pin.
const ATTEMPT_COUNT_MAX: usize = 10;

/// The pin that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinOptions {
    /// Name of the pin.
    pub name: PinName,
    /// Number of generations to keep. `None`: all.
    pub keep: Option<u32>,
    /// Time until the generation expires, in seconds. `None`: never.
    pub lifetime: Option<i64>,
    /// Whether the path may replace a snapshot.
    pub is_forced: bool,
}

/// The outcome of pinning a path.
#[derive(Debug)]
pub struct PinReport {
    /// Name of the pin.
    pub name: PinName,
    /// The named path.
    pub path: String,
    /// The generation of the pin, or the reason why the path was not pinned.
    pub generation: Result<u64, String>,
}

impl PinOptions {
    /// Pins a path that the cache has. Returns the generation of the pin. `http`: client for the
    /// URL to which stock Nix clients push; `None` if the server is not Samovar.
    ///
    /// # Errors
    ///
    /// The error is the reason why the path was not pinned, with the fix.
    pub(super) fn pin(&self, http: Option<&Http>, path: &StorePath) -> Result<u64, String> {
        const UNKNOWN: &str = "the cache does not let clients pin paths: update Samovar on the \
                               server, or run samovar pin add there";
        let http = http.ok_or(UNKNOWN)?;
        let url = self.url();
        let body = Put::text_of(path, None, None);
        let body = Payload::Bytes(body.as_bytes());
        for _ in 0..ATTEMPT_COUNT_MAX {
            let expected = self.expected(http, path);
            let http = &conditional(http, expected.map_err(|error| format!("{error:#}"))?);
            let sent = answer(|| http.put(&url, "text/plain", body));
            let (response, text) = sent.map_err(|error| format!("{error:#}"))?;
            return match (response.status().as_u16(), text) {
                (200, Some(text)) => generation(&text, path)
                    .map_err(|_error| format!("invalid answer from {}: {text:?}", http.url(&url))),
                (404 | 405 | 501, _) => Err(UNKNOWN.to_owned()),
                (409, Some(text)) => Err(format!("the cache refused it: {}", text.trim_end())),
                // Another client has changed the pin since it was read.
                (412, _) => continue,
                _ => Err(format!("the cache refused it: {}", http.refusal(response))),
            };
        }
        Err("other clients change the pin at the same time: run the command again".to_owned())
    }

    /// Returns the state of the pin in which the path may be pinned.
    ///
    /// # Errors
    ///
    /// The name belongs to a ref of snapshots, or the cache is unavailable.
    fn expected(&self, http: &Http, path: &StorePath) -> anyhow::Result<Expected> {
        if self.is_forced {
            return Ok(Expected::Any);
        }
        let log = Refs::below(http.clone()).get(&self.name)?;
        let Some(newest) = log.and_then(|log| log.generations.into_iter().next()) else {
            return Ok(Expected::Absent);
        };
        check_successor(&self.name, &newest.manifest, path)?;
        Ok(Expected::Generation(newest.version()))
    }

    fn url(&self) -> String {
        let mut url = url(&self.name);
        let parameters = [
            self.keep.map(|count| format!("keep={count}")),
            self.lifetime.map(|seconds| format!("expires={seconds}")),
        ];
        let parameters: Vec<String> = parameters.into_iter().flatten().collect();
        if !parameters.is_empty() {
            url.push('?');
            url.push_str(&parameters.join("&"));
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str, keep: Option<u32>, lifetime: Option<i64>) -> PinOptions {
        PinOptions {
            name: name.parse().unwrap(),
            keep,
            lifetime,
            is_forced: false,
        }
    }

    #[test]
    fn urls_of_pins() {
        assert_eq!(options("main", None, None).url(), "/pin/main");
        assert_eq!(
            options("a/b \u{e4}?", Some(5), Some(60)).url(),
            "/pin/a%2Fb%20%C3%A4%3F?keep=5&expires=60"
        );
        assert_eq!(options("a", None, Some(1)).url(), "/pin/a?expires=1");
    }
}
