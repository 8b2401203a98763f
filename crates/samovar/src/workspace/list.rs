//! `samovar workspace list`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use samovar_client::workspace::{STATE, State, Workspace};
use samovar_client::workspace::{old, registry};

use super::delete::check_complete;
use super::local::{local_changes, summary};
use super::{age, overlay};
use crate::outcome::Failed;
use crate::user_dirs;

/// Lists the workspaces of the user.
///
/// # Errors
///
/// The directory of their states cannot be read.
pub(super) fn list(is_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if let Some(states) = user_dirs::workspaces()
        && let Err(error) = fs::read_dir(&states)
        && error.kind() != ErrorKind::NotFound
    {
        let error = anyhow!(error).context(format!("cannot read {states:?}"));
        return Err(Failed::Unavailable.because(error));
    }
    let registered = registry::list().into_iter().filter_map(|one| {
        let is_workspace = one.dir.join(STATE).exists();
        is_workspace.then_some(one.path)
    });
    let mut roots: Vec<PathBuf> = registered.chain(old::list()).collect();
    roots.sort();
    roots.dedup();
    let mut rows = Vec::new();
    for root in roots {
        let mut row = Row {
            root,
            title: "-".to_owned(),
            is_mounted: None,
            age: None,
            state: "vanished".to_owned(),
        };
        match Workspace::at(&row.root) {
            Ok(None) => describe_removed(&mut row),
            Ok(Some(workspace)) => {
                if let Err(error) = describe(&mut row, &workspace) {
                    row.state = format!("{error:#}");
                }
            }
            Err(error) => row.state = format!("{error:#}"),
        }
        rows.push(row);
    }
    if is_json {
        let rows = rows.iter().map(|row| {
            serde_json::json!({
                "directory": row.root.to_string_lossy(),
                "ref": row.title,
                "mode": if row.is_mounted.is_some() { "overlay" } else { "dir" },
                "isMounted": row.is_mounted,
                "state": row.state,
                "age": row.age,
            })
        });
        let document = serde_json::json!({ "workspaces": rows.collect::<Vec<_>>() });
        return Ok(writeln!(out, "{document}")?);
    }
    for row in rows {
        let age = row.age.unwrap_or_else(|| "never".to_owned());
        let mode = match row.is_mounted {
            None => "",
            Some(true) => ", overlay",
            Some(false) => ", overlay, not mounted",
        };
        let line = format!(
            "{}  {}{mode}, last push or pull: {age}",
            row.root.display(),
            row.title
        );
        writeln!(out, "{line}; {}", row.state)?;
    }
    Ok(())
}

/// A workspace in the list.
struct Row {
    root: PathBuf,
    /// The ref with the generation.
    title: String,
    /// Whether the files can be read, in overlay mode.
    is_mounted: Option<bool>,
    /// Time since the last push or pull.
    age: Option<String>,
    state: String,
}

fn describe(row: &mut Row, workspace: &Workspace) -> anyhow::Result<()> {
    row.title = workspace.title();
    let synced = workspace.state.base.as_ref();
    row.age = synced.map(|base| age(base.synced_at));
    row.is_mounted = overlay::is_mounted(workspace);
    workspace.check_based()?;
    row.state = summary(&local_changes(workspace, true)?);
    Ok(())
}

/// Describes a workspace whose directory was removed. In overlay mode, the changes still exist in
/// the directory of the layers.
fn describe_removed(row: &mut Row) {
    let Some(removed) = overlay::find_removed(&row.root) else {
        if let Some(changes) = old::removed(&row.root) {
            row.state = vanished(&changes, "REF", &row.root);
        }
        return;
    };
    if let Err(error) = check_complete(&removed) {
        row.state = format!("{error:#}");
        return;
    }
    let State { url, name, .. } = &removed.state;
    row.title = removed.title();
    row.age = removed.state.base.as_ref().map(|base| age(base.synced_at));
    row.is_mounted = Some(false);
    let changes = removed.upper().unwrap_or_default();
    row.state = vanished(&changes, &format!("{url}#{name}"), &row.root);
}

fn vanished(changes: &Path, reference: &str, root: &Path) -> String {
    format!(
        "vanished, with its changes in {changes:?}: samovar workspace open --mode overlay \
         {reference} {} mounts them again",
        root.display()
    )
}
