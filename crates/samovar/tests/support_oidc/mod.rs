//! An issuer of ID tokens: an HTTP server with keys and signatures made by OpenSSL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

mod trusting;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testkit::process::output;

pub(crate) use trusting::{Trusting, exchange, token_of};

/// Audience of the tokens.
pub(crate) const AUDIENCE: &str = "https://cache.example.org";

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// A key pair of OpenSSL.
pub(crate) struct Pair {
    dir: tempfile::TempDir,
    id: String,
    is_rsa: bool,
}

impl Pair {
    /// Generates an RSA key.
    pub(crate) fn rsa(id: &str) -> Self {
        Self::generate(id, true, "-algorithm RSA -pkeyopt rsa_keygen_bits:2048")
    }

    /// Generates a key on the curve P-256.
    pub(crate) fn ec(id: &str) -> Self {
        Self::generate(id, false, "-algorithm EC -pkeyopt ec_paramgen_curve:P-256")
    }

    fn generate(id: &str, is_rsa: bool, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut openssl = Command::new("openssl");
        openssl.arg("genpkey").args(options.split(' ')).arg("-out");
        output(openssl.arg(dir.path().join("key")));
        Self {
            dir,
            id: id.to_owned(),
            is_rsa,
        }
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    /// Returns the public key as a JSON Web Key.
    pub(crate) fn public(&self) -> Value {
        let mut openssl = Command::new("openssl");
        if self.is_rsa {
            openssl
                .args(["rsa", "-noout", "-modulus", "-in"])
                .arg(self.key());
            let text = output(&mut openssl);
            let digits = text.trim().strip_prefix("Modulus=").unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            let modulus: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
            return json!({
                "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id,
                "n": encode(modulus), "e": "AQAB",
            });
        }
        openssl.args(["pkey", "-pubout", "-outform", "DER", "-in"]);
        let der = openssl.arg(self.key()).output().unwrap().stdout;
        // The point is the end of the structure.
        let point = &der[der.len() - 64..];
        json!({
            "kty": "EC", "crv": "P-256", "kid": self.id,
            "x": encode(&point[..32]), "y": encode(&point[32..]),
        })
    }

    fn algorithm(&self) -> &'static str {
        if self.is_rsa { "RS256" } else { "ES256" }
    }

    /// Signs a text.
    fn signature(&self, text: &str) -> Vec<u8> {
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-sign"]).arg(self.key());
        let mut child = openssl
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let signature = child.wait_with_output().unwrap().stdout;
        match self.is_rsa {
            true => signature,
            false => fixed(&signature),
        }
    }

    /// Makes a token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let head = json!({"alg": self.algorithm(), "kid": self.id, "typ": "JWT"});
        self.token_with(&head, claims)
    }

    /// Makes a token with this head.
    pub(crate) fn token_with(&self, head: &Value, claims: &Value) -> String {
        let text = format!(
            "{}.{}",
            encode(head.to_string()),
            encode(claims.to_string())
        );
        let signature = encode(self.signature(&text));
        format!("{text}.{signature}")
    }
}

/// Converts an ECDSA signature from DER, `30 len 02 len r 02 len s`, to two numbers of 32 bytes.
fn fixed(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut both = Vec::new();
    for _ in 0..2 {
        let len = usize::from(rest[1]);
        let number = &rest[2..2 + len];
        let number = &number[number.len().saturating_sub(32)..];
        both.resize(both.len() + 32 - number.len(), 0);
        both.extend(number);
        rest = &rest[2 + len..];
    }
    both
}

/// How an issuer answers.
#[derive(Default)]
pub(crate) struct Answers {
    /// The keys that it has.
    pub(crate) keys: Vec<Value>,
    /// Text instead of the keys.
    pub(crate) keys_text: Option<String>,
    /// Whole responses to all requests.
    pub(crate) response: Option<String>,
    /// Whether responses are held back.
    pub(crate) is_held: bool,
    /// The issuer in its description, instead of its own URL.
    pub(crate) issuer: Option<String>,
    /// The ID token that jobs get from GitHub's URL.
    pub(crate) id_token: String,
    /// Request lines that were received.
    pub(crate) requests: Vec<String>,
}

/// A running issuer.
pub(crate) struct Issuer {
    pub(crate) url: String,
    answers: Arc<(Mutex<Answers>, Condvar)>,
}

impl Issuer {
    /// Starts an issuer with these keys. Its thread ends with the process.
    pub(crate) fn start(pairs: &[&Pair]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = Answers {
            keys: pairs.iter().map(|pair| pair.public()).collect(),
            ..Answers::default()
        };
        let answers = Arc::new((Mutex::new(answers), Condvar::new()));
        let issuer = Self {
            url: url.clone(),
            answers: Arc::clone(&answers),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answers, url) = (Arc::clone(&answers), url.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &answers, &url));
            }
        });
        issuer
    }

    /// Changes how the issuer answers.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.0.lock().unwrap());
        self.answers.1.notify_all();
    }

    /// Returns the number of requests for this path since the start.
    pub(crate) fn count(&self, path: &str) -> usize {
        let answers = self.answers.0.lock().unwrap();
        let is_it = |line: &&String| line.split(' ').nth(1) == Some(path);
        answers.requests.iter().filter(is_it).count()
    }

    /// Returns the ID token that jobs get from GitHub's URL.
    pub(crate) fn id_token(&self) -> String {
        self.answers.0.lock().unwrap().id_token.clone()
    }

    /// Returns the claims of a job of GitHub in this repository and on this branch.
    pub(crate) fn claims(&self, repository: &str, branch: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url, "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 300,
            "sub": format!("repo:{repository}:ref:refs/heads/{branch}"),
            "repository": repository, "ref": format!("refs/heads/{branch}"), "run_id": "4711",
        })
    }

    /// Returns a configuration with this issuer and a rule. `more`: more fields of the rule.
    pub(crate) fn configuration(&self, more: &str) -> String {
        format!(
            "\n[oidc.github]\nissuer = {:?}\naudience = {AUDIENCE:?}\n\
             [[oidc.github.rules]]\n\
             claims = {{ repository = \"example/*\", ref = \"refs/heads/main\" }}\n{more}\n",
            self.url
        )
    }
}

fn answer(mut stream: TcpStream, answers: &(Mutex<Answers>, Condvar), url: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(line)) = lines.next() else { return };
    // Read the head, so that the connection is not reset.
    lines.map_while(Result::ok).find(String::is_empty);
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let response = {
        let (answers, changed) = answers;
        let mut answers = answers.lock().unwrap();
        answers.requests.push(line);
        let answers = changed
            .wait_while(answers, |answers| answers.is_held)
            .unwrap();
        let issuer = answers.issuer.clone().unwrap_or_else(|| url.to_owned());
        let body = match &*path {
            "/.well-known/openid-configuration" => {
                json!({"issuer": issuer, "jwks_uri": format!("{url}/jwks")}).to_string()
            }
            "/jwks" => match &answers.keys_text {
                Some(text) => text.clone(),
                None => json!({"keys": answers.keys}).to_string(),
            },
            path if path.starts_with("/github?") => {
                json!({"count": 1, "value": answers.id_token}).to_string()
            }
            _ => String::new(),
        };
        let len = body.len();
        answers.response.clone().unwrap_or_else(|| {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}")
        })
    };
    // The client may have left.
    stream.write_all(response.as_bytes()).ok();
    stream.shutdown(std::net::Shutdown::Write).ok();
    stream.read_to_end(&mut Vec::new()).ok();
}

/// Makes certificate authorities and a certificate for 127.0.0.1 in a directory: `cert` and `key`.
pub(crate) fn certificate(dir: &Path) -> PathBuf {
    let mut openssl = Command::new("openssl");
    openssl.args("req -x509 -newkey rsa:2048 -noenc -subj /CN=issuer -days 2".split(' '));
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:false"]);
    openssl.args(["-keyout", "key", "-out", "cert"]);
    output(openssl.current_dir(dir));
    dir.join("cert")
}
