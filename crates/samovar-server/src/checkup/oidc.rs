//! Checks the issuers of ID tokens: requests their keys as the server would.

use samovar_cache::{IssuerAnswer, IssuerSettings, ask_issuer};
use samovar_text::counted;

use super::Findings;
use super::upstreams::difference;
use crate::config::Configuration;

const SUBJECT: &str = "oidc";

/// A greater difference between the clocks of an issuer and of this machine is an error: ID tokens
/// would be refused.
const CLOCK_TOLERANCE_S: u64 = samovar_oidc::id_token::LEEWAY_S.unsigned_abs();

/// Requests description and keys of each issuer. Call it after the process has switched its user,
/// who reads the files of certificates.
pub(super) fn examine(config: &Configuration, findings: &mut Findings) {
    for settings in &config.oidc {
        match ask_issuer(settings) {
            Ok(answer) => report(settings, &answer, findings),
            Err(reason) => findings.error(
                SUBJECT,
                format!("the issuer {:?} cannot be used: {reason}", settings.name),
                "compare issuer with the claim iss of its tokens, slashes included; check the \
                 network, ca-file and the issuer",
            ),
        }
    }
}

fn report(settings: &IssuerSettings, answer: &IssuerAnswer, findings: &mut Findings) {
    let name = &settings.name;
    if let Some(clocks) = answer.clocks
        && let (difference, direction) = difference(clocks)
        && difference.as_secs() > CLOCK_TOLERANCE_S
    {
        findings.error(
            SUBJECT,
            format!(
                "the clock of the issuer {name:?} is {} {direction} of that of this machine, so \
                 its tokens are refused",
                counted(difference.as_secs(), "second")
            ),
            "let NTP set the one that is wrong: timedatectl set-ntp true",
        );
    }
    let keys = counted(answer.keys.len() as u64, "key");
    let time = answer.time.as_millis();
    findings.ok(
        SUBJECT,
        format!("the issuer {name:?} has {keys}, after {time} ms"),
    );
}
