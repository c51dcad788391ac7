//! Reports of a run: JSON, tables and a bar chart.

use std::fmt::Write as _;

use curt_observe::{CallCounts, Operation};
use serde::{Deserialize, Serialize};

pub mod chart;
pub mod progress;
pub mod ratios;

/// The requests as a map from operation to number, in the operations' order, and their total.
mod requests {
    use std::collections::BTreeMap;

    use curt_observe::{CallCounts, Operation};
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(calls: &CallCounts, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (operation, count) in calls.iter() {
            map.serialize_entry(&operation.key(), &count)?;
        }
        map.serialize_entry("total", &calls.total())?;
        map.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CallCounts, D::Error> {
        let mut map = BTreeMap::<String, u64>::deserialize(deserializer)?;
        map.remove("total");
        let known = |(key, count): (String, u64)| Some((Operation::from_key(&key)?, count));
        Ok(map.into_iter().filter_map(known).collect())
    }
}

/// One run of a workload on a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The workload's name.
    pub workload: String,
    /// The version of NFS.
    pub vers: String,
    /// The mount options as given; may be empty.
    pub options: String,
    /// The server, `HOST:/PATH`.
    pub server: String,
    /// Operations performed.
    pub operations: u64,
    /// Number of wrong results.
    pub wrong: u64,
    /// The duration in seconds, pauses included.
    pub seconds: f64,
    /// Requests since mounting.
    #[serde(with = "requests")]
    pub rpc: CallCounts,
}

fn percent(part: u64, whole: u64) -> u64 {
    (part * 100).checked_div(whole).unwrap_or(0)
}

/// One column of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonColumn {
    /// The title: the options.
    pub title: String,
    /// The requests.
    pub rpc: CallCounts,
    /// The duration of each page in seconds; empty without pages.
    pub pages: Vec<f64>,
}

/// A table of runs: the requests by operation with their percentage, without operations that were
/// not used; then the duration of each page.
#[must_use]
pub fn comparison(columns: &[ComparisonColumn]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    rows.push(row("requests", columns, |column| column.title.clone()));
    rows.push(row("calls", columns, |column| column.rpc.total().to_string()));
    for operation in Operation::nfs() {
        if columns.iter().any(|column| column.rpc.value(operation) > 0) {
            rows.push(row(&operation.key().to_lowercase(), columns, |column| {
                let count = column.rpc.value(operation);
                format!("{count} {:>3}%", percent(count, column.rpc.total()))
            }));
        }
    }
    let pages = columns.iter().map(|column| column.pages.len()).max().unwrap_or(0);
    for page in 0..pages {
        rows.push(row(&format!("view {} (s)", page + 1), columns, |column| {
            column.pages.get(page).map_or_else(String::new, |seconds| format!("{seconds:.3}"))
        }));
    }
    lay_out(&rows)
}

fn row(first: &str, columns: &[ComparisonColumn], cell: impl Fn(&ComparisonColumn) -> String) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(columns.iter().map(cell)).collect()
}

/// Rows of cells as text: the first column left-aligned, the others right-aligned, a line below the
/// header.
#[must_use]
pub fn lay_out(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at == 0 { write!(line, "{cell:<width$}") } else { write!(line, "   {cell:>width$}") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
        if number == 0 {
            let _ = writeln!(
                text,
                "{}",
                "-".repeat(widths.iter().sum::<usize>() + 3 * columns.saturating_sub(1))
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    fn counts() -> CallCounts {
        let some = [
            (NfsProcedure::Getattr, 1308),
            (NfsProcedure::Lookup, 416),
            (NfsProcedure::Access, 667),
            (NfsProcedure::Read, 216),
            (NfsProcedure::ReaddirPlus, 2),
        ];
        Operation::nfs()
            .map(|operation| (operation, 0))
            .chain(some.map(|(procedure, count)| (procedure.into(), count)))
            .collect()
    }

    #[test]
    fn json_has_every_operation_and_the_total_and_reads_back() {
        let report = RunReport {
            workload: "page".into(),
            vers: "3".into(),
            options: String::new(),
            server: "127.0.0.1:/tree".into(),
            operations: 24_387,
            wrong: 0,
            seconds: 5.25,
            rpc: counts(),
        };
        let json = serde_json::to_string(&report).unwrap();
        let head = r#"{"workload":"page","vers":"3","options":"","server":"127.0.0.1:/tree","operations":24387,"wrong":0,"seconds":5.25,"rpc":{"NULL":0,"GETATTR":1308,"#;
        assert!(json.starts_with(head), "{json}");
        assert!(json.ends_with(r#""COMMIT":0,"total":2609}}"#), "{json}");
        assert_eq!(serde_json::from_str::<RunReport>(&json).unwrap(), report);
    }

    #[test]
    fn comparison_leaves_out_what_nobody_sent() {
        let column = |title: &str, pages: &[f64]| ComparisonColumn {
            title: title.into(),
            rpc: counts(),
            pages: pages.to_vec(),
        };
        let text = comparison(&[column("defaults", &[0.5]), column("few", &[])]);
        assert!(text.contains("getattr") && !text.contains("commit"), "{text}");
        assert!(text.contains("view 1 (s)") && text.contains("0.500"), "{text}");
    }
}
