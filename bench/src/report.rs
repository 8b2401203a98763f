//! Writes the results to the terminal and to files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::Results;
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

/// Writes `table.md` and `chart.svg` into `folder`.
pub(crate) fn write(folder: &Path, markdown: &str, results: &Results) -> Result<()> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(folder)?;
    write("table.md", markdown)?;
    if let Some(chart) = chart::render(results) {
        write("chart.svg", &chart)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::with_gaps;

    #[test]
    fn all_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let results = with_gaps();
        let text = markdown("a machine", &["a remark".into()], &results);
        // The report is committed to the repository without changes.
        assert!(!text.contains("\n\n\n") && !text.contains(" \n"), "{text}");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text}");
        write(folder.path(), &text, &results).unwrap();
        for name in ["table.md", "chart.svg"] {
            assert!(
                folder.path().join(name).metadata().unwrap().len() > 100,
                "{name}"
            );
        }
    }
}
