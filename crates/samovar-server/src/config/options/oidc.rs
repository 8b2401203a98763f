//! Options of an issuer of ID tokens.

use super::Set::{IssuerRules, Parsed, Path, Text};
use super::Shown::Words;
use super::{Row, issuer};
use crate::config::draft::IssuerDraft;
use crate::config::issuer_rules::issuer_url;

pub(in crate::config) static OPTIONS: &[Row<IssuerDraft>] = &[
    issuer(
        "issuer",
        Parsed(
            "an https URL as in the claim iss of its tokens, or an http URL of this machine",
            |draft, text| {
                draft.issuer = Some(issuer_url(text)?);
                Some(())
            },
        ),
        "URL of the issuer, exactly as in the claim iss of its ID tokens. Its keys are found by \
         /.well-known/openid-configuration below it.",
    )
    .defaults_to(Words("none: it must be set")),
    issuer(
        "audience",
        Text(|draft, text| draft.audience = Some(text)),
        "The claim aud that ID tokens must have: the URL of this server without a path, which \
         clients request by default.",
    )
    .defaults_to(Words("none: it must be set")),
    issuer(
        "ca-file",
        Path(|draft, path| draft.ca_file = Some(path)),
        "PEM file with the certificate authorities that are trusted in requests to the issuer.",
    )
    .defaults_to(Words("those of this machine")),
    issuer(
        "rules",
        IssuerRules(|draft, rules| draft.rules = rules),
        "Which ID tokens give which rights: a list of tables, of which the first counts whose \
         claims match. claims: for each claim a pattern, or a list of patterns; cache, names, \
         rights and expires: as of samovar token create, but expires is at most 1 h.",
    )
    .defaults_to(Words("none: there must be one")),
];
