//! `samovar nodes`: lists the servers that share the database of a storage.

use std::io::Write;

use anyhow::ensure;
use clap::{ArgMatches, Command};
use samovar_storage::nodes::{NodeState, list};
use serde_json::{Value, json};

use crate::arguments::json;
use crate::serve;
use crate::storage;
use crate::token::{date_and_time, open};

/// Defines the command `samovar nodes`.
pub(crate) fn command() -> Command {
    let command = Command::new("nodes")
        .about("Lists the servers that share the database of a storage: version, lease, machine")
        .after_help(
            "LEASE is yes if the server answers from memory, and no if it has ended, hangs, or \
             does not reach the database; uploads do not wait for it then. BEHIND is the number of \
             commits that it has not confirmed. A server that has ended without leaving is listed \
             for a day. Give the configuration of one of the servers. Example: samovar nodes \
             --config /etc/samovar.toml",
        )
        .arg(json());
    serve::with_options(command, |name| {
        name == "storage" || name.starts_with("database.") || name.starts_with("bucket.")
    })
}

/// Runs `samovar nodes`.
///
/// # Errors
///
/// The configuration is invalid, no other server can share the storage, or its database cannot be
/// used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (_config, location) = storage::configured(matches)?;
    ensure!(
        location.database().is_some(),
        "the database of this storage is a file, which servers on other machines cannot share: \
         set database.url and bucket.url, or name another configuration with --config"
    );
    let nodes = list(&open(&location, false)?)?;
    if matches.get_flag("json") {
        let nodes: Vec<Value> = nodes.iter().map(document).collect();
        return Ok(writeln!(out, "{:#}", json!({ "nodes": nodes }))?);
    }
    let width = nodes.iter().map(|node| node.name.len()).max();
    let width = width.unwrap_or_default().max(12);
    let hosts = nodes.iter().map(|node| host(node).len()).max();
    let hosts = hosts.unwrap_or_default().max(7);
    writeln!(
        out,
        "{:width$}  {:8}  {:5}  {:>6}  {:20}  {:hosts$}  ADDRESS",
        "NAME", "VERSION", "LEASE", "BEHIND", "JOINED", "MACHINE"
    )?;
    for node in &nodes {
        writeln!(
            out,
            "{:width$}  {:8}  {:5}  {:>6}  {:20}  {:hosts$}  {}",
            node.name,
            node.version,
            if node.has_lease { "yes" } else { "no" },
            node.behind,
            date_and_time(node.joined_at),
            host(node),
            node.address.as_deref().unwrap_or("-"),
        )?;
    }
    Ok(())
}

fn host(node: &NodeState) -> &str {
    node.host.as_deref().unwrap_or("-")
}

fn document(node: &NodeState) -> Value {
    json!({
        "name": node.name,
        "version": node.version,
        "lease": node.has_lease,
        "behind": node.behind,
        "joined_at": node.joined_at,
        "renewed_at": node.renewed_at,
        "machine": node.host,
        "address": node.address,
    })
}
