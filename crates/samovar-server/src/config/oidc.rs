//! Reads the issuers of ID tokens, which the tables `[oidc.NAME]` name.

use samovar_cache::{IssuerRule, IssuerSettings};
use samovar_oidc::conditions::Conditions;

use super::draft::{IssuerDraft, requires};
use super::error::ConfigError;
use super::options::{self, FindCredential, Scope};
use super::read::set_all;
use super::settings::Settings;

/// Returns all issuers, sorted by name.
pub(super) fn issuers(
    settings: &Settings,
    has_storage: bool,
    credential: FindCredential<'_>,
) -> Result<Vec<IssuerSettings>, ConfigError> {
    let mut issuers: Vec<IssuerSettings> = Vec::new();
    for (name, origin) in settings.named(Scope::Oidc) {
        let table = format!("{}.{name}", Scope::Oidc.table());
        if !has_storage {
            return Err(requires(&table, "storage"));
        }
        let mut draft = IssuerDraft::default();
        let find = |option: &str| {
            let name = Scope::Oidc.full_name(name, option);
            let setting = settings.exactly(&name)?;
            Some((name, setting))
        };
        set_all(options::oidc::OPTIONS, &mut draft, find, credential)?;
        let missing = |option: &str| {
            ConfigError::Conflict(format!(
                "{origin}: {table} has no {option}: set {table}.{option}, or remove the table"
            ))
        };
        let issuer = draft.issuer.ok_or_else(|| missing("issuer"))?;
        let audience = draft.audience.ok_or_else(|| missing("audience"))?;
        if draft.rules.is_empty() {
            return Err(missing("rules"));
        }
        if let Some(other) = issuers.iter().find(|other| other.issuer == issuer) {
            return Err(ConfigError::Conflict(format!(
                "{origin}: {}.{} and {table} have the same issuer {issuer}: put all rules into one \
                 of them",
                Scope::Oidc.table(),
                other.name
            )));
        }
        let rules = (1..).zip(draft.rules).map(|(number, rule)| {
            let conditions = Conditions::new(rule.claims, &issuer).map_err(|error| {
                ConfigError::Conflict(format!("{origin}: rule {number} of {table} has {error}"))
            })?;
            Ok(IssuerRule {
                conditions,
                cache: rule.cache,
                names: rule.names,
                rights: rule.rights,
                lifetime: rule.lifetime,
            })
        });
        issuers.push(IssuerSettings {
            name: name.to_owned(),
            rules: rules.collect::<Result<_, ConfigError>>()?,
            issuer,
            audience,
            ca_file: draft.ca_file,
        });
    }
    Ok(issuers)
}
