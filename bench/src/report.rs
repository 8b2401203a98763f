//! Output of the results to the terminal and to files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::contender::Contender;
use crate::figures::{Cell, Gap, Results};
use crate::{chart, summary, table};

/// Renders the whole report as Markdown, introduced by `machine` and `remarks`.
pub(crate) fn markdown(machine: &str, remarks: &[String], results: &Results) -> String {
    let mut text = format!("{machine}\n");
    for remark in remarks {
        text.push_str(&format!("* {remark}\n"));
    }
    format!(
        "{}\n\n{}{}",
        text.trim_end(),
        summary::render(results),
        table::render(results).trim_end()
    ) + "\n"
}

/// Writes `table.md`, `chart.svg` and `results.json` into `folder`.
pub(crate) fn write(
    folder: &Path,
    markdown: &str,
    machine: &str,
    results: &Results,
    contenders: &[Contender],
) -> Result<()> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(folder)?;
    write("table.md", markdown)?;
    if let Some(chart) = chart::render(results) {
        write("chart.svg", &chart)?;
    }
    let raw = serde_json::to_string_pretty(&raw(machine, results, contenders))?;
    write("results.json", &(raw + "\n"))
}

/// Returns every round of every row as JSON.
fn raw(machine: &str, results: &Results, contenders: &[Contender]) -> Value {
    let servers: Vec<Value> = contenders
        .iter()
        .map(|contender| {
            let commands: Vec<&str> = contender.commands().collect();
            json!({ "name": contender.name, "commands": commands })
        })
        .collect();
    let rows: Vec<Value> = results
        .rows
        .iter()
        .map(|row| {
            let names = results.servers.iter().map(|(name, _)| name.clone());
            let cells: Map<String, Value> = names.zip(row.cells.iter().map(raw_cell)).collect();
            json!({ "name": row.name, "section": row.section.title(), "servers": cells })
        })
        .collect();
    json!({ "machine": machine.trim_end(), "servers": servers, "rows": rows })
}

fn raw_cell(cell: &Cell) -> Value {
    let rounds: Vec<Value> = cell
        .rounds
        .iter()
        .map(|values| {
            let values = values.iter();
            let fields = values.map(|(quantity, value)| (quantity.key().to_owned(), json!(value)));
            Value::Object(fields.collect())
        })
        .collect();
    let mut fields = Map::new();
    match &cell.gap {
        Some(Gap::NotAsked(why)) => fields.insert("not_asked".into(), json!(why)),
        Some(Gap::Failed(why)) => fields.insert("failed".into(), json!(why)),
        None => None,
    };
    fields.insert("rounds".into(), json!(rounds));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::with_gaps;

    #[test]
    fn gaps_are_in_the_raw_results() {
        let raw = raw("a machine", &with_gaps(), &[]);
        let cell = |row: usize, name: &str| raw["rows"][row]["servers"][name].clone();
        assert_eq!(cell(0, "samovar")["rounds"][0]["server_cpu_us"], 5.0);
        assert_eq!(cell(1, "nginx")["not_asked"], "no command with {key}");
        assert_eq!(cell(2, "samovar")["failed"], "status 500 & <worse>");
    }

    #[test]
    fn all_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let results = with_gaps();
        let text = markdown("a machine", &["a remark".into()], &results);
        // The report is committed to the repository without changes.
        assert!(!text.contains("\n\n\n") && !text.contains(" \n"), "{text}");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text}");
        write(folder.path(), &text, "a machine", &results, &[]).unwrap();
        for name in ["table.md", "chart.svg", "results.json"] {
            assert!(
                folder.path().join(name).metadata().unwrap().len() > 100,
                "{name}"
            );
        }
    }
}
