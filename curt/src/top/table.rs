//! A table and its cells, as text, as JSON and sorted. Pure.

use curt_bench::report::lay_out;
use serde_json::{Value, json};

/// A table: the contents of a tab.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TopTable {
    /// Its name, for the tab and in JSON.
    pub(super) name: &'static str,
    /// The names of the columns; the first identifies a row.
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Vec<TableCell>>,
    /// The initial sort column.
    pub(super) by: usize,
}

/// A value in a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TableCell {
    Text(String),
    /// A rate, a time or a percentage.
    Rate(f64),
    Count(u64),
    /// No value.
    Nothing,
}

impl TableCell {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Rate(rate) if *rate >= 100.0 => format!("{rate:.0}"),
            Self::Rate(rate) if *rate >= 1.0 => format!("{rate:.1}"),
            Self::Rate(rate) => format!("{rate:.3}"),
            Self::Count(count) => count.to_string(),
            Self::Nothing => "-".to_owned(),
        }
    }

    /// Orders numbers by value and above all others, which are ordered as text.
    pub(super) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let number = |cell: &Self| match cell {
            Self::Rate(rate) => Some(*rate),
            Self::Count(count) => Some(*count as f64),
            Self::Text(_) | Self::Nothing => None,
        };
        match (number(self), number(other)) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            (one, another) => {
                one.is_some().cmp(&another.is_some()).then_with(|| self.text().cmp(&other.text()))
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Rate(rate) => json!(rate),
            Self::Count(count) => json!(count),
            Self::Nothing => Value::Null,
        }
    }
}

impl TopTable {
    /// A table with these columns, separated by spaces.
    pub(super) fn new(
        name: &'static str,
        by: usize,
        columns: &'static str,
        rows: impl IntoIterator<Item = Vec<TableCell>>,
    ) -> Self {
        Self { name, columns: columns.split(' ').collect(), rows: rows.into_iter().collect(), by }
    }

    /// As text, with its name.
    pub(super) fn text(&self) -> String {
        let head = self.columns.iter().map(|column| (*column).to_owned()).collect();
        let mut rows = vec![head];
        rows.extend(self.rows.iter().map(|row| row.iter().map(TableCell::text).collect::<Vec<_>>()));
        format!("{}:\n{}", self.name, lay_out(&rows))
    }
}

/// The percentage of `part` in the sum of both.
pub(super) fn share(part: f64, rest: f64) -> TableCell {
    if part + rest > 0.0 { TableCell::Rate(part * 100.0 / (part + rest)) } else { TableCell::Nothing }
}
