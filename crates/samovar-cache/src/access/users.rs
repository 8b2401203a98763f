//! Users and their passwords.
//!
//! # Theory of operation
//!
//! Verifying a hashed password takes tens of milliseconds by design, and clients send theirs with
//! every request. So the server remembers one verified password per user for [`KNOWN_TIME`], as a
//! digest under a key of this process. Recognizing it costs two blocks of SHA-256 per request.
//! Wrong passwords are remembered too, for a shorter time and in a separate table, so that a
//! misconfigured client costs no more than a correctly configured one.
//!
//! The password of an unknown user is verified against the hash of an existing user, always the
//! same one for the same name. So neither the time of a response nor its variation reveals which
//! users exist.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use argon2::password_hash::phc::{PasswordHash, Salt};
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};

use super::credentials::Basic;
use super::error::LineProblem;
use super::secret::{Digest, Secret, random};
use super::secret_file::{LineError, lines};

use crate::sync::Locked;

/// Time for which a verified password is remembered. Changes of the users file take effect at once
/// in any case; this only limits how long the digest of an inactive user stays in memory.
const KNOWN_TIME: Duration = Duration::from_secs(3600);

/// Time for which a wrong password is remembered.
const WRONG_TIME: Duration = Duration::from_secs(60);

/// Number of wrong passwords that are remembered: at 48 bytes each, 96 KiB.
const WRONG_COUNT: usize = 2048;

/// Maximum memory for verifying one password, in KiB.
const ARGON2_MEMORY_MAX: u32 = 256 * 1024;

const ARGON2_ROUNDS_MAX: u32 = 16;

const ARGON2_LANES_MAX: u32 = 16;

/// Maximum cost of a bcrypt hash, the binary logarithm of its rounds. A hash of this cost takes
/// about a second.
const BCRYPT_COST_MAX: u32 = 14;

/// All configured users.
#[derive(Debug)]
pub(crate) struct Users {
    by_name: HashMap<Box<[u8]>, User>,
    /// The names of all users. The substitute for an unknown user is chosen from them.
    names: Vec<Box<[u8]>>,
    /// Remembered wrong passwords, indexed by digest. A client that sends many wrong passwords
    /// overwrites entries of other clients, whose passwords are then just verified again.
    wrong: Mutex<Box<[Option<Remembered>]>>,
}

#[derive(Debug)]
struct User {
    name: Arc<str>,
    hash: Hash,
    known: Mutex<Option<Remembered>>,
}

#[derive(Debug, Clone)]
struct Remembered {
    digest: Digest,
    until: Instant,
}

impl Remembered {
    fn holds(&self, digest: &Digest, now: Instant) -> bool {
        self.digest == *digest && now < self.until
    }
}

/// The result of looking up a password in memory.
#[derive(Debug)]
pub(crate) enum Recalled<'a> {
    /// A remembered right password; contains the user's name.
    Known(&'a Arc<str>),
    /// A remembered wrong password.
    Wrong,
    /// The password is not remembered and must be verified.
    Unverified,
}

impl Users {
    /// Parses the users file.
    pub(crate) fn parse(text: &str) -> Result<Self, LineError> {
        let mut by_name = HashMap::new();
        let mut names = Vec::new();
        lines(text, LineProblem::NoUser, |name, hash| {
            let user = User {
                name: Arc::from(name),
                hash: Hash::parse(hash)?,
                known: Mutex::default(),
            };
            let key: Box<[u8]> = name.as_bytes().into();
            names.push(key.clone());
            match by_name.insert(key, user) {
                None => Ok(()),
                Some(_) => Err(LineProblem::Again),
            }
        })?;
        Ok(Self {
            by_name,
            names,
            wrong: Mutex::new(vec![None; WRONG_COUNT].into_boxed_slice()),
        })
    }

    /// Inherits the remembered passwords of users whose line is unchanged.
    pub(crate) fn inherit(&self, before: &Self) {
        for (name, user) in &self.by_name {
            if let Some(old) = before.by_name.get(name)
                && old.hash == user.hash
            {
                user.known.locked().clone_from(&old.known.locked());
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn recall(&self, secret: &Secret, basic: &Basic, now: Instant) -> Recalled<'_> {
        let digest = secret.digest(&[basic.user(), basic.password()]);
        if let Some(user) = self.by_name.get(basic.user()) {
            let known = user.known.locked();
            if known
                .as_ref()
                .is_some_and(|known| known.holds(&digest, now))
            {
                return Recalled::Known(&user.name);
            }
        }
        let is_wrong = self.with_wrong(&digest, |slot| {
            slot.as_ref().is_some_and(|wrong| wrong.holds(&digest, now))
        });
        match is_wrong {
            // Without users, every password is wrong.
            false if self.len() > 0 => Recalled::Unverified,
            _ => Recalled::Wrong,
        }
    }

    /// Verifies a password, which takes tens of milliseconds. Returns the user's name if the
    /// password is right.
    pub(crate) fn verify(&self, secret: &Secret, basic: &Basic, now: Instant) -> Option<&Arc<str>> {
        let digest = secret.digest(&[basic.user(), basic.password()]);
        let found = self.by_name.get(basic.user());
        let user = found.or_else(|| self.stand_in(secret, basic.user()))?;
        let is_right = user.hash.verify(basic.password()) && found.is_some();
        let remembered = |time| {
            let until = now + time;
            Some(Remembered { digest, until })
        };
        if is_right {
            *user.known.locked() = remembered(KNOWN_TIME);
            return Some(&user.name);
        }
        self.with_wrong(&digest, |slot| *slot = remembered(WRONG_TIME));
        None
    }

    /// Whether the password of this name is verified before those of other names: if there is such
    /// a user. The same holds for one of sixteen other names, so that a guesser who makes a queue,
    /// and finds a name in front of it, has most likely not found a user.
    pub(crate) fn comes_first(&self, secret: &Secret, basic: &Basic) -> bool {
        let [first, ..] = secret.digest(&[b"comes first", basic.user()]);
        self.by_name.contains_key(basic.user()) || first < 16
    }

    fn stand_in(&self, secret: &Secret, name: &[u8]) -> Option<&User> {
        let [a, b, c, d, ..] = secret.digest(&[name]);
        let index = u32::from_le_bytes([a, b, c, d]) as usize % self.names.len().max(1);
        self.by_name.get(self.names.get(index)?)
    }

    fn with_wrong<T>(&self, digest: &Digest, act: impl FnOnce(&mut Option<Remembered>) -> T) -> T {
        let [a, b, ..] = *digest;
        let index = usize::from(u16::from_le_bytes([a, b])) % WRONG_COUNT;
        let mut wrong = self.wrong.locked();
        act(wrong.get_mut(index).unwrap_or(&mut None))
    }
}

#[derive(PartialEq, Eq)]
enum Hash {
    Argon2id(Box<PasswordHash>),
    Bcrypt(Box<str>),
}

impl Hash {
    fn parse(text: &str) -> Result<Self, LineProblem> {
        // Prefixes that `htpasswd` and crypt(5) write, each with its algorithm, which is not
        // secure.
        const WEAK: [(&str, &str); 6] = [
            ("$apr1$", "MD5"),
            ("$1$", "MD5"),
            ("{SHA}", "SHA-1"),
            ("{SSHA}", "SHA-1"),
            ("{PLAIN}", "no hash"),
            ("$3$", "NT's hash"),
        ];
        let weak = WEAK.iter().find(|(mark, _)| text.starts_with(mark));
        if let Some((_, name)) = weak {
            return Err(LineProblem::Weak(name));
        }
        if text.starts_with("$argon2id$") {
            return Self::argon2id(text);
        }
        let marks = ["$2y$", "$2b$", "$2a$"];
        if marks.iter().any(|mark| text.starts_with(mark)) {
            return Self::bcrypt(text);
        }
        Err(LineProblem::Plain)
    }

    fn argon2id(text: &str) -> Result<Self, LineProblem> {
        let hash = PasswordHash::new(text).map_err(|_error| LineProblem::Damaged)?;
        let params = Params::try_from(&hash).map_err(|_error| LineProblem::Damaged)?;
        if params.m_cost() > ARGON2_MEMORY_MAX
            || params.t_cost() > ARGON2_ROUNDS_MAX
            || params.p_cost() > ARGON2_LANES_MAX
        {
            return Err(LineProblem::Costly);
        }
        match (&hash.salt, &hash.hash) {
            // A short output is refused because another password could match it by chance.
            (Some(_), Some(output)) if output.len() >= 16 => Ok(Self::Argon2id(Box::new(hash))),
            _ => Err(LineProblem::Damaged),
        }
    }

    fn bcrypt(text: &str) -> Result<Self, LineProblem> {
        let parts: bcrypt::HashParts = text.parse().map_err(|_error| LineProblem::Damaged)?;
        match parts.get_cost() <= BCRYPT_COST_MAX {
            true => Ok(Self::Bcrypt(text.into())),
            false => Err(LineProblem::Costly),
        }
    }

    fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Argon2id(hash) => Argon2::default().verify_password(password, &**hash).is_ok(),
            // bcrypt ignores everything after 72 bytes. A longer password must not match just
            // because it starts with the right one.
            Self::Bcrypt(hash) => bcrypt::non_truncating_verify(password, hash).unwrap_or(false),
        }
    }
}

impl std::fmt::Debug for Hash {
    /// Hides the hash from logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Argon2id(_) => "Argon2id",
            Self::Bcrypt(_) => "Bcrypt",
        })
    }
}

/// Hashes a password for the users file, where the hash follows the name and a colon. Uses Argon2id
/// with 19 MiB and 2 rounds, the minimum recommended by OWASP, because a server may have to verify
/// many.
///
/// # Errors
///
/// If the system provides no random numbers, or the password contains control characters, which
/// HTTP Basic does not allow.
pub fn hash_password(password: &[u8]) -> io::Result<String> {
    if password.iter().any(u8::is_ascii_control) {
        let message = "a password for HTTP holds no control characters";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let salt = random::<{ Salt::RECOMMENDED_LENGTH }>()?;
    let hash = Argon2::default().hash_password_with_salt(password, &salt);
    hash.map(|hash| hash.to_string()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::super::credentials::Credentials;
    use super::*;

    /// The hash of "secret" by libxcrypt 4.4: `perl -e 'print crypt("secret", q($2y$04$OEVz…))'`.
    const BCRYPT: &str = "$2y$04$OEVzUZqbSbVW2vZfkJSnZ.5HAbAodLUS0W0NxhaDSPif.fZ1AiSlu";

    fn basic(user: &str, password: &str) -> Basic {
        use base64::Engine as _;
        let text = format!("{user}:{password}");
        let text = base64::engine::general_purpose::STANDARD.encode(text);
        match Credentials::parse(format!("Basic {text}").as_bytes()) {
            Some(Credentials::Basic(basic)) => basic,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_line(line: &str, expected: LineProblem) {
        assert_eq!(Users::parse(line).unwrap_err(), (1, expected), "{line}");
    }

    #[test]
    fn invalid_lines_are_refused_with_the_reason() {
        check_line("ada", LineProblem::NoUser);
        check_line("ada:secret", LineProblem::Plain);
        check_line("ada:", LineProblem::Plain);
        check_line("ada:rOkPLBOVwcm1o", LineProblem::Plain);
        check_line("ada:$apr1$r31.$gF7Q", LineProblem::Weak("MD5"));
        check_line(
            "ada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
            LineProblem::Weak("SHA-1"),
        );
        check_line("ada:$6$salt$hash", LineProblem::Plain);
        check_line(
            "ada:$argon2i$v=19$m=1024,t=2,p=1$c2FsdHNhbHQ$AAAA",
            LineProblem::Plain,
        );
        check_line(
            "ada:$argon2id$v=19$m=1024,t=2,p=1$c2FsdHNhbHQ",
            LineProblem::Damaged,
        );
        check_line(&format!("ada:{}", &BCRYPT[..59]), LineProblem::Damaged);
        let costly = BCRYPT.replace("$04$", "$15$");
        check_line(&format!("ada:{costly}"), LineProblem::Costly);
        let own = hash_password(b"secret").unwrap();
        for (from, to) in [("m=19456", "m=262145"), ("t=2", "t=17"), ("p=1", "p=17")] {
            let costly = own.replace(from, to);
            assert_ne!(costly, own);
            check_line(&format!("ada:{costly}"), LineProblem::Costly);
        }
        let twice = format!("# people\n\nada:{BCRYPT}\nbob:{BCRYPT}\nada:{own}\n");
        assert_eq!(Users::parse(&twice).unwrap_err(), (5, LineProblem::Again));
    }

    #[test]
    fn a_password_is_verified_once() {
        let own = hash_password("sécret".as_bytes()).unwrap();
        let empty = hash_password(b"").unwrap();
        let text = format!("ada:{BCRYPT}\r\nbob:{own}\n:{empty}\n");
        let users = Users::parse(&text).unwrap();
        let (secret, now) = (Secret::new().unwrap(), Instant::now());
        for (user, password) in [("ada", "secret"), ("bob", "sécret"), ("", "")] {
            let right = basic(user, password);
            assert!(matches!(
                users.recall(&secret, &right, now),
                Recalled::Unverified
            ));
            assert_eq!(
                users.verify(&secret, &right, now).map(|name| &**name),
                Some(user)
            );
            assert!(matches!(users.recall(&secret, &right, now),
                    Recalled::Known(name) if **name == *user));
            let later = now + KNOWN_TIME;
            assert!(matches!(
                users.recall(&secret, &right, later),
                Recalled::Unverified
            ));
        }
        let wrongs = [
            ("ada", "Secret"),
            ("ada", ""),
            ("eve", "secret"),
            ("bob", "secret"),
        ];
        for (user, password) in wrongs {
            let wrong = basic(user, password);
            assert!(matches!(
                users.recall(&secret, &wrong, now),
                Recalled::Unverified
            ));
            assert_eq!(
                users.verify(&secret, &wrong, now),
                None,
                "{user} {password}"
            );
            assert!(matches!(
                users.recall(&secret, &wrong, now),
                Recalled::Wrong
            ));
            let later = now + WRONG_TIME;
            assert!(matches!(
                users.recall(&secret, &wrong, later),
                Recalled::Unverified
            ));
        }
        // A remembered password of one user is not accepted for another.
        assert!(matches!(
            users.recall(&secret, &basic("ada", "secret"), now),
            Recalled::Known(_)
        ));
    }

    #[test]
    fn a_bcrypt_password_longer_than_72_bytes_is_not_truncated() {
        let long = "p".repeat(72);
        let hash = bcrypt::hash(&long, 4).unwrap();
        let users = Users::parse(&format!("ada:{hash}")).unwrap();
        let (secret, now) = (Secret::new().unwrap(), Instant::now());
        let tail = basic("ada", &format!("{long}x"));
        assert_eq!(users.verify(&secret, &tail, now), None);
    }

    #[test]
    fn remembered_passwords_survive_a_reload_if_the_line_is_unchanged() {
        let other = hash_password(b"secret").unwrap();
        let before = Users::parse(&format!("ada:{BCRYPT}\nbob:{BCRYPT}\neve:{BCRYPT}")).unwrap();
        let (secret, now) = (Secret::new().unwrap(), Instant::now());
        for name in ["ada", "bob", "eve"] {
            assert!(
                before
                    .verify(&secret, &basic(name, "secret"), now)
                    .is_some()
            );
        }
        let after = Users::parse(&format!("ada:{BCRYPT}\nbob:{other}")).unwrap();
        after.inherit(&before);
        let look = |name| after.recall(&secret, &basic(name, "secret"), now);
        assert!(matches!(look("ada"), Recalled::Known(_)));
        assert!(matches!(look("bob"), Recalled::Unverified));
        assert!(matches!(look("eve"), Recalled::Unverified));
        assert_eq!(after.verify(&secret, &basic("eve", "secret"), now), None);
    }

    /// An unknown name is always verified against the same user's hash, and not all unknown names
    /// against that of one user.
    #[test]
    fn an_unknown_name_is_always_verified_against_the_same_user() {
        let users = Users::parse(&format!("ada:{BCRYPT}\nbob:{BCRYPT}\n")).unwrap();
        let secret = Secret::new().unwrap();
        let stand_in = |name: &str| {
            users
                .stand_in(&secret, name.as_bytes())
                .map(|user| &*user.name)
        };
        let found: Vec<_> = (0..40)
            .map(|number| stand_in(&format!("eve{number}")))
            .collect();
        assert!(found.contains(&Some("ada")) && found.contains(&Some("bob")));
        assert_eq!(stand_in("eve1"), found[1]);
    }
}
