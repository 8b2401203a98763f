//! Requests that clients send, and the outcomes that the oracle judges.

use std::sync::Arc;

use crate::timeline::Moment;
use crate::world::Facts;
use testkit::random::SplitMix64;

/// The resource that a request asks for.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Info,
    Narinfo(Arc<Facts>),
    /// The NAR of a store path. If a NAR hash is given, the URL contains it.
    Nar(Arc<Facts>, Option<String>),
    Listing(Arc<Facts>),
    Closure(Arc<Facts>),
    Narinfos(Vec<Arc<Facts>>),
    Log,
    /// A URL that the server does not know.
    Nowhere,
}

/// A request of a client.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) is_head: bool,
    /// The requested byte range, start and exclusive end; without an end, the range extends to the
    /// last byte. `None`: the whole resource is requested.
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// A header field that is sent in addition and must not change the response.
    pub(crate) idle_field: Option<&'static str>,
}

/// The way in which a response ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// The connection or stream failed after the head was received. Contains the error.
    Cut(String),
    /// The connection or stream failed before a head was received. Contains the error.
    Silent(String),
    /// The client aborted the response.
    Left,
}

/// What the client received in response to a request, and when.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) via: &'static str,
    /// Time just before the first byte of the request was sent.
    pub(crate) sent: Moment,
    /// Time when the head was received.
    pub(crate) head_at: Moment,
    /// Time when half of the body was received; `None` if its length was not known in advance.
    pub(crate) half_at: Option<Moment>,
    pub(crate) end_at: Moment,
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
    /// Whether the client read slowly on purpose.
    pub(crate) is_slow: bool,
}

pub(crate) const LOG_NAME: &str = "00000000000000000000000000000chs-logged.drv";
pub(crate) const LOG_TEXT: &str = "building\nno errors\n";

impl Ask {
    pub(crate) fn of(what: What) -> Self {
        Self {
            what,
            is_head: false,
            range: None,
            idle_field: None,
        }
    }

    /// Creates a request for `what`, possibly with a variation that the resource allows: HEAD, a
    /// range, or an irrelevant header field.
    pub(crate) fn random(what: What, random: &mut SplitMix64) -> Self {
        const IDLE: [&str; 5] = [
            "If-None-Match: \"x\"",
            "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "Accept-Encoding: zstd, br, gzip",
            "Cache-Control: no-cache",
            "Expect: nothing",
        ];
        let mut ask = Self::of(what);
        let is_post = matches!(ask.what, What::Narinfos(_));
        ask.is_head = !is_post && random.percent(10);
        if let What::Nar(facts, _) = &ask.what
            && random.percent(25)
        {
            let len = facts
                .latest()
                .map_or(5000, |version| version.nar.len() as u64);
            let from = random.between(0, len + len / 20 + 1);
            let end = from + 1 + random.between(0, len);
            ask.range = Some((from, random.percent(60).then_some(end)));
        } else if random.percent(10) {
            ask.idle_field = Some(IDLE[random.index(4)]);
        }
        ask
    }

    /// Returns the expected state of the requested store path; `None` if the request is not about a
    /// single path.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        match &self.what {
            What::Narinfo(facts)
            | What::Nar(facts, _)
            | What::Listing(facts)
            | What::Closure(facts) => Some(facts),
            What::Info | What::Narinfos(_) | What::Log | What::Nowhere => None,
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        match self.what {
            What::Narinfos(_) => "POST",
            _ if self.is_head => "HEAD",
            _ => "GET",
        }
    }

    pub(crate) fn target(&self) -> String {
        match &self.what {
            What::Info => "/nix-cache-info".to_owned(),
            What::Narinfo(facts) => format!("/{}.narinfo", facts.hash_part()),
            What::Nar(facts, None) => format!("/nar/{}.nar", facts.hash_part()),
            What::Nar(facts, Some(hash)) => format!("/nar/{}-{hash}.nar", facts.hash_part()),
            What::Listing(facts) => format!("/{}.ls", facts.hash_part()),
            What::Closure(facts) => format!("/closure/{}", facts.hash_part()),
            What::Narinfos(_) => "/narinfos".to_owned(),
            What::Log => format!("/log/{LOG_NAME}"),
            What::Nowhere => "/nowhere".to_owned(),
        }
    }

    pub(crate) fn body(&self) -> Option<String> {
        match &self.what {
            What::Narinfos(paths) => {
                let lines = paths.iter().map(|facts| format!("{}\n", facts.store_path));
                Some(lines.collect())
            }
            _ => None,
        }
    }

    /// Returns the header fields besides those that the protocol requires.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        if let Some((from, end)) = self.range {
            let last = end.map_or(String::new(), |end| (end - 1).to_string());
            fields.push(("range".to_owned(), format!("bytes={from}-{last}")));
        }
        if let Some((name, value)) = self.idle_field.and_then(|field| field.split_once(": ")) {
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        fields
    }

    /// Serialises the request for HTTP/1.1.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nHost: a\r\n",
            self.method(),
            self.target()
        );
        for (name, value) in self.fields() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = self.body() {
            text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        } else {
            text.push_str("\r\n");
        }
        text.into_bytes()
    }

    /// Returns the kind of this request, under which the report of the run counts it.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.what {
            What::Info => "cache-info",
            What::Narinfo(_) => "narinfo",
            What::Nar(..) if self.range.is_some() => "range",
            What::Nar(..) => "nar",
            What::Listing(_) => "listing",
            What::Closure(_) => "closure",
            What::Narinfos(_) => "narinfos",
            What::Log => "log",
            What::Nowhere => "nowhere",
        }
    }
}

impl Outcome {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}
