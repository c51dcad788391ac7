//! What a run is reported as: JSON for programs, tables and a bar chart for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub mod chart;

/// The procedures of NFSv3 in the order of their numbers, as nfsstat prints them.
pub const PROCEDURES: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// How many requests of each procedure were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcCounts([u64; PROCEDURES.len()]);

impl RpcCounts {
    /// The counts by the procedures' names in upper case; names that NFSv3 does not have are an error.
    ///
    /// # Errors
    /// The first name that is not known.
    pub fn from_names<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Result<Self, &'a str> {
        let mut all = Self::default();
        for (name, count) in counts {
            let index = PROCEDURES.iter().position(|known| *known == name).ok_or(name)?;
            all.0[index] = count;
        }
        Ok(all)
    }

    /// The requests of one procedure; 0 for a name that there is not.
    #[must_use]
    pub fn of(&self, procedure: &str) -> u64 {
        self.iter()
            .find(|(name, _)| *name == procedure)
            .map_or(0, |(_, count)| count)
    }

    /// Each procedure and its requests.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        PROCEDURES.into_iter().zip(self.0)
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Serialize for RpcCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(PROCEDURES.len() + 1))?;
        for (name, count) in self.iter() {
            map.serialize_entry(name, &count)?;
        }
        map.serialize_entry("total", &self.total())?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for RpcCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = BTreeMap::<String, u64>::deserialize(deserializer)?;
        map.remove("total");
        Self::from_names(map.iter().map(|(name, count)| (name.as_str(), *count)))
            .map_err(serde::de::Error::custom)
    }
}

/// One run of a workload on a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The version of NFS.
    pub vers: String,
    /// The mount options asked for, as given; empty: none.
    pub options: String,
    /// Where the tree was, `HOST:/PATH`.
    pub server: String,
    /// Operations performed.
    pub operations: u64,
    /// Results that were not as recorded.
    pub wrong: u64,
    /// How long it took, pauses included.
    pub seconds: f64,
    /// Requests sent, from the mount on.
    pub rpc: RpcCounts,
}

impl Report {
    /// The counts as nfsstat prints those of a client.
    #[must_use]
    pub fn nfsstat(&self) -> String {
        nfsstat(&self.rpc)
    }
}

/// Counts in the layout of `nfsstat -c`: names over counts and percentages, six to a line.
#[must_use]
pub fn nfsstat(counts: &RpcCounts) -> String {
    let total = counts.total();
    let mut text = format!("Client rpc stats:\ncalls\n{total}\n\nClient nfs v3:\n");
    let all: Vec<_> = counts.iter().collect();
    for row in all.chunks(6) {
        let (mut names, mut values) = (String::new(), String::new());
        for (name, count) in row {
            let cell = format!("{count} {}%", percent(*count, total));
            // Writing to a String cannot fail.
            let _ = write!(names, "{:<16}", name.to_lowercase());
            let _ = write!(values, "{cell:<16}");
        }
        let _ = writeln!(text, "{}\n{}", names.trim_end(), values.trim_end());
    }
    text
}

fn percent(part: u64, whole: u64) -> u64 {
    (part * 100).checked_div(whole).unwrap_or(0)
}

/// One column of a comparison.
#[derive(Clone, Debug)]
pub struct Column {
    /// What is written over it: the options in few words.
    pub title: String,
    /// The requests.
    pub rpc: RpcCounts,
    /// How long each page took, in seconds; empty where there are no pages.
    pub pages: Vec<f64>,
}

/// Runs side by side: the requests by procedure with their share, those that nobody sent left out; then how long each page took.
#[must_use]
pub fn comparison(columns: &[Column]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    rows.push(row("requests", columns, |column| column.title.clone()));
    rows.push(row("calls", columns, |column| column.rpc.total().to_string()));
    for procedure in PROCEDURES {
        if columns.iter().any(|column| column.rpc.of(procedure) > 0) {
            rows.push(row(&procedure.to_lowercase(), columns, |column| {
                let count = column.rpc.of(procedure);
                format!("{count} {:>3}%", percent(count, column.rpc.total()))
            }));
        }
    }
    let pages = columns.iter().map(|column| column.pages.len()).max().unwrap_or(0);
    for page in 0..pages {
        rows.push(row(&format!("view {} (s)", page + 1), columns, |column| {
            column
                .pages
                .get(page)
                .map_or_else(String::new, |seconds| format!("{seconds:.3}"))
        }));
    }
    lay_out(&rows)
}

fn row(first: &str, columns: &[Column], cell: impl Fn(&Column) -> String) -> Vec<String> {
    std::iter::once(first.to_owned())
        .chain(columns.iter().map(cell))
        .collect()
}

/// Rows of equally many cells as text: the first column to the left, the others to the right, a line under the head.
#[must_use]
pub fn lay_out(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at == 0 {
                write!(line, "{cell:<width$}")
            } else {
                write!(line, "   {cell:>width$}")
            };
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

    use super::*;

    fn counts() -> RpcCounts {
        RpcCounts::from_names([
            ("GETATTR", 1308),
            ("LOOKUP", 416),
            ("ACCESS", 667),
            ("READ", 216),
            ("READDIRPLUS", 2),
        ])
        .unwrap()
    }

    #[test]
    fn json_has_every_procedure_and_the_total_and_reads_back() {
        let report = Report {
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
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        assert_eq!(RpcCounts::from_names([("OPEN", 1)]), Err("OPEN"));
    }

    #[test]
    fn nfsstat_prints_six_to_a_line_with_whole_percentages() {
        let text = nfsstat(&counts());
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[2], "2609");
        assert_eq!(lines[5], "null getattr setattr lookup access readlink");
        assert_eq!(lines[6], "0 0% 1308 50% 0 0% 416 15% 667 25% 0 0%");
        assert_eq!(lines.len(), 5 + 2 * 4);
        assert!(nfsstat(&RpcCounts::default()).contains("0 0%"));
    }

    #[test]
    fn comparison_leaves_out_what_nobody_sent() {
        let column = |title: &str, pages: &[f64]| Column {
            title: title.into(),
            rpc: counts(),
            pages: pages.to_vec(),
        };
        let text = comparison(&[column("defaults", &[0.5]), column("few", &[])]);
        assert!(text.contains("getattr") && !text.contains("commit"), "{text}");
        assert!(text.contains("view 1 (s)") && text.contains("0.500"), "{text}");
    }
}
