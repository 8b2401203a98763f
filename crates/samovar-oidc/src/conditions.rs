//! [`Conditions`]: what the claims of a token must be, in the configuration of a server.

use crate::claims::Claims;
use crate::pattern::Pattern;

/// Claims that say nothing about the holder of a token.
const OF_EVERY_TOKEN: [&str; 6] = ["iss", "aud", "exp", "nbf", "iat", "jti"];

/// An issuer that gives tokens to everybody who has an account, and the claims that say whose
/// project a token is for.
struct Public {
    issuer: &'static str,
    owners: &'static [Owner],
}

/// A claim that says whose project a token is for.
struct Owner {
    claim: &'static str,
    /// Text before the owner in the value.
    start: &'static str,
    /// Whether the value begins with the owner and a slash. Otherwise, it is the owner.
    is_path: bool,
}

const fn whole(claim: &'static str) -> Owner {
    Owner {
        claim,
        start: "",
        is_path: false,
    }
}

const fn path(claim: &'static str, start: &'static str) -> Owner {
    Owner {
        claim,
        start,
        is_path: true,
    }
}

/// # Source
///
/// GitHub: reference of `OpenID` Connect in Actions; GitLab: ID tokens of jobs. `job_workflow_ref`
/// is not among them: every repository may use a public workflow.
const PUBLIC: [Public; 2] = [
    Public {
        issuer: "https://token.actions.githubusercontent.com",
        owners: &[
            path("repository", ""),
            whole("repository_id"),
            whole("repository_owner"),
            whole("repository_owner_id"),
            path("sub", "repo:"),
            path("workflow_ref", ""),
        ],
    },
    Public {
        issuer: "https://gitlab.com",
        owners: &[
            path("project_path", ""),
            whole("project_id"),
            whole("namespace_id"),
            whole("namespace_path"),
            path("sub", "project_path:"),
        ],
    },
];

/// Conditions that would admit everybody, or nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionsError {
    /// There is no condition on the holder of a token.
    #[error(
        "no condition on a claim besides iss, aud, exp, nbf, iat and jti: it would admit every \
         token of the issuer"
    )]
    NoCondition,
    /// A claim has no pattern.
    #[error("no pattern for the claim {0:?}: give a text, or a list of texts")]
    NoPattern(String),
    /// All patterns match all values.
    #[error("only patterns that match everything: they would admit every token of the issuer")]
    Trivial,
    /// The issuer serves everybody, and no condition names an owner.
    #[error(
        "no condition on the owner, so that it would admit jobs of everybody with an account at \
         this issuer: name the owner without * and ? in {0}"
    )]
    NoOwner(&'static str),
}

/// Conditions that all must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions(Vec<(String, Vec<Pattern>)>);

/// A claim that does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch<'a> {
    /// Name of the claim.
    pub claim: &'a str,
    /// Whether the token has no such claim, or one that is neither text, integer nor truth value.
    pub is_absent: bool,
}

impl Conditions {
    /// Makes conditions on tokens of `issuer`: for each claim the patterns of which one must match
    /// its value.
    ///
    /// # Errors
    ///
    /// Any [`ConditionsError`].
    pub fn new(claims: Vec<(String, Vec<Pattern>)>, issuer: &str) -> Result<Self, ConditionsError> {
        let is_about_holder = |name: &String| !OF_EVERY_TOKEN.contains(&&**name);
        if !claims.iter().any(|(name, _)| is_about_holder(name)) {
            return Err(ConditionsError::NoCondition);
        }
        if let Some((name, _)) = claims.iter().find(|(_, patterns)| patterns.is_empty()) {
            return Err(ConditionsError::NoPattern(name.clone()));
        }
        let mut about_holder = claims.iter().filter(|(name, _)| is_about_holder(name));
        if about_holder.all(|(_, patterns)| patterns.iter().any(Pattern::is_trivial)) {
            return Err(ConditionsError::Trivial);
        }
        let issuer = issuer.trim_end_matches('/');
        let public = PUBLIC.iter().find(|public| public.issuer == issuer);
        if let Some(public) = public
            && !claims.iter().any(|condition| public.names_owner(condition))
        {
            return Err(ConditionsError::NoOwner(public.example()));
        }
        Ok(Self(claims))
    }

    /// Checks the claims of a token.
    ///
    /// # Errors
    ///
    /// The first claim that does not match.
    pub fn check(&self, claims: &Claims) -> Result<(), Mismatch<'_>> {
        for (name, patterns) in &self.0 {
            let value = claims.text(name);
            let is_match = value.as_ref().is_some_and(|value| {
                let mut patterns = patterns.iter();
                patterns.any(|pattern| pattern.matches(value))
            });
            if !is_match {
                return Err(Mismatch {
                    claim: name,
                    is_absent: value.is_none(),
                });
            }
        }
        Ok(())
    }
}

impl Public {
    /// Returns whether each of the patterns names an owner.
    fn names_owner(&self, (claim, patterns): &(String, Vec<Pattern>)) -> bool {
        let owner = self.owners.iter().find(|owner| owner.claim == claim);
        owner.is_some_and(|owner| patterns.iter().all(|pattern| owner.is_in(pattern)))
    }

    fn example(&self) -> &'static str {
        self.owners.first().map_or("", |owner| owner.claim)
    }
}

impl Owner {
    fn is_in(&self, pattern: &Pattern) -> bool {
        match (
            self.is_path,
            pattern.literal_start().strip_prefix(self.start),
        ) {
            (false, _) => pattern.is_literal(),
            (true, Some(start)) => start.find('/').is_some_and(|at| at > 0),
            (true, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GITHUB: &str = "https://token.actions.githubusercontent.com";

    fn conditions(claims: &[(&str, &str)], issuer: &str) -> Result<Conditions, ConditionsError> {
        let claims = claims.iter().map(|(name, pattern)| {
            let patterns = pattern.split(' ').filter(|one| !one.is_empty());
            ((*name).to_owned(), patterns.map(Pattern::new).collect())
        });
        Conditions::new(claims.collect(), issuer)
    }

    #[test]
    fn all_claims_must_match() {
        let conditions = conditions(
            &[
                ("repository", "example/*"),
                ("ref", "refs/heads/main refs/tags/*"),
            ],
            GITHUB,
        );
        let conditions = conditions.unwrap();
        let check = |claims: serde_json::Value| {
            let claims = Claims(claims.as_object().unwrap().clone());
            let mismatch = conditions.check(&claims).err()?;
            Some((mismatch.claim.to_owned(), mismatch.is_absent))
        };
        let found = |claim: &str, is_absent| Some((claim.to_owned(), is_absent));
        let good = json!({"repository": "example/app", "ref": "refs/tags/1", "more": 1});
        assert_eq!(check(good), None);
        let other = json!({"repository": "example/a/b", "ref": "refs/heads/main"});
        assert_eq!(check(other), found("repository", false));
        let other = json!({"repository": "example/app", "ref": "refs/heads/mainx"});
        assert_eq!(check(other), found("ref", false));
        assert_eq!(
            check(json!({"repository": "example/app"})),
            found("ref", true)
        );
        let nested = json!({"repository": "example/app", "ref": ["refs/heads/main"]});
        assert_eq!(check(nested), found("ref", true));
    }

    #[test]
    fn conditions_that_admit_everybody_are_refused() {
        use ConditionsError::{NoCondition, NoOwner, NoPattern, Trivial};
        let own = "https://gitlab.example.org";
        for (claims, issuer, expected) in [
            (&[][..], own, NoCondition),
            (&[("iss", "x"), ("aud", "x")], own, NoCondition),
            (
                &[("project_path", "")],
                own,
                NoPattern("project_path".to_owned()),
            ),
            (&[("project_path", "**")], own, Trivial),
            (&[("project_path", "a/b **")], own, Trivial),
            (&[("project_path", "*"), ("ref", "?*")], own, Trivial),
            (&[("ref", "refs/heads/main")], GITHUB, NoOwner("repository")),
            (&[("repository", "*/*")], own, Trivial),
            (&[("repository", "*/app")], GITHUB, NoOwner("repository")),
            (
                &[("repository", "exam*/app")],
                GITHUB,
                NoOwner("repository"),
            ),
            (&[("repository", "exam*")], GITHUB, NoOwner("repository")),
            (&[("repository", "/app")], GITHUB, NoOwner("repository")),
            (
                &[("repository", "example/a b*")],
                GITHUB,
                NoOwner("repository"),
            ),
            (
                &[("repository_owner", "exam*")],
                GITHUB,
                NoOwner("repository"),
            ),
            (&[("sub", "repo:*")], GITHUB, NoOwner("repository")),
            (&[("sub", "repo:e*/app:**")], GITHUB, NoOwner("repository")),
            (&[("sub", "**")], GITHUB, Trivial),
            (
                &[(
                    "job_workflow_ref",
                    "example/ci/.github/workflows/a.yml@refs/heads/main",
                )],
                GITHUB,
                NoOwner("repository"),
            ),
            (
                &[("ref", "main")],
                "https://gitlab.com",
                NoOwner("project_path"),
            ),
            (
                &[("ref", "main")],
                "https://gitlab.com/",
                NoOwner("project_path"),
            ),
        ] {
            assert_eq!(conditions(claims, issuer), Err(expected), "{claims:?}");
        }
    }

    #[test]
    fn conditions_that_name_an_owner_are_accepted() {
        for (claims, issuer) in [
            (&[("repository", "example/*")][..], GITHUB),
            (&[("repository", "example/a example/b")], GITHUB),
            (&[("repository_owner", "example")], GITHUB),
            (&[("repository_owner_id", "12"), ("ref", "**")], GITHUB),
            (&[("sub", "repo:example/app:**")], GITHUB),
            (&[("project_path", "group/**")], "https://gitlab.com"),
            (&[("ref", "main")], "https://gitlab.example.org"),
        ] {
            assert!(conditions(claims, issuer).is_ok(), "{claims:?}");
        }
    }
}
