//! Tables from the benchmark's JSON. Rows in which Curt is slower, and missed goals, are marked.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::Value;

use super::goals::{GoalMeasure, missed};

/// The peer to compare with.
const PEER: &str = "ganesha";

/// The titles of the tables of one operation at a time.
pub(super) const ANY_PROCESSOR: &str = "One at a time, client and servers on any processor (µs)";
pub(super) const ONE_PROCESSOR: &str = "One at a time, all on one processor (µs)";

/// A column: its heading, and its cell in a row.
type Column = (&'static str, fn(&Value) -> String);

/// One operation at a time.
const SINGLE: [Column; 12] = [
    ("operation", |row| text_of(row, "op").to_owned()),
    ("echo", |row| tenths(number(row, "echo_us"))),
    ("floor", |row| tenths(number(row, "floor_us"))),
    ("Curt", |row| tenths(number(row, "curt_us"))),
    ("p99", |row| tenths(number(row, "curt_p99_us"))),
    ("by floor (95 %)", by_floor),
    ("without file cache", |row| tenths(number(row, "filecache_off_us"))),
    ("through a mount", |row| tenths(number(row, "mount_us"))),
    ("Ganesha", |row| tenths(peer(row, "us"))),
    ("Ganesha by Curt", |row| faster(row, GoalMeasure::Time)),
    // Lower limits: a server that makes only the system calls, and one that makes none.
    ("Ganesha by floor", |row| factor(peer(row, "us"), number(row, "floor_us"))),
    ("Ganesha by echo", |row| factor(peer(row, "us"), number(row, "echo_us"))),
];

/// Many operations at once.
const MANY: [Column; 10] = [
    ("operation", |row| text_of(row, "op").to_owned()),
    ("floor (µs)", |row| tenths(number(row, "floor_us"))),
    ("Curt (µs)", |row| tenths(number(row, "curt_us"))),
    ("by floor (95 %)", by_floor),
    ("Curt", |row| thousands(number(row, "ops_per_s"))),
    ("Ganesha", |row| thousands(peer(row, "ops_per_s"))),
    ("Curt by Ganesha", |row| faster(row, GoalMeasure::Rate)),
    ("Curt CPU (µs)", |row| tenths(number(row, "cpu_us"))),
    ("Ganesha CPU (µs)", |row| tenths(peer(row, "cpu_us"))),
    ("Ganesha by Curt", |row| faster(row, GoalMeasure::Processor)),
];

/// One operation of NFSv4.1 at a time.
const SESSION_SINGLE: [Column; 7] = [
    ("operation", |row| text_of(row, "op").to_owned()),
    ("echo", |row| tenths(number(row, "echo_us"))),
    ("floor", |row| tenths(number(row, "floor_us"))),
    ("Curt", |row| tenths(number(row, "curt_us"))),
    ("by floor (95 %)", by_floor),
    ("Ganesha", |row| tenths(peer(row, "us"))),
    ("by GETATTR", by_getattr),
];

/// Many operations of NFSv4.1 at once.
const SESSION_MANY: [Column; 6] = [
    ("operation", |row| text_of(row, "op").to_owned()),
    ("Curt", |row| thousands(number(row, "ops_per_s"))),
    ("Ganesha", |row| thousands(peer(row, "ops_per_s"))),
    ("Curt CPU (µs)", |row| tenths(number(row, "cpu_us"))),
    ("Ganesha CPU (µs)", |row| tenths(peer(row, "cpu_us"))),
    ("Ganesha by Curt", |row| faster(row, GoalMeasure::Processor)),
];

/// The tables of NFSv4.1 in BENCHMARKS.md.
pub(super) fn of_sessions(report: &mut Value) -> Result<String> {
    let rows = report["rows"].as_array_mut().context("the benchmark printed no rows")?;
    let getattrs: Vec<Value> = rows.iter().filter(|row| text_of(row, "op") == "GETATTR").cloned().collect();
    for row in &mut *rows {
        let is_same = |other: &&Value| {
            ["outstanding", "connections", "placement"].into_iter().all(|key| other[key] == row[key])
        };
        let getattr = getattrs.iter().find(is_same).and_then(|getattr| number(getattr, "curt_us"));
        let by_getattr = number(row, "curt_us").zip(getattr).map(|(own, getattr)| own / getattr);
        row["vers"] = "4.1".into();
        row["by_getattr"] = by_getattr.into();
    }
    let mut text = String::new();
    for (placement, title) in [("any", ANY_PROCESSOR), ("one-cpu", ONE_PROCESSOR)] {
        text += &table(title, &SESSION_SINGLE, of(rows, 1, 1, placement));
    }
    for (placement, title) in [("any", "any processor"), ("one-cpu", "one processor")] {
        let title =
            format!("16 at once on one connection, {title}, thousand operations a second and CPU of each");
        text += &table(&title, &SESSION_MANY, of(rows, 16, 1, placement));
    }
    Ok(text)
}

/// The tables of BENCHMARKS.md.
pub(super) fn benchmarks(report: &Value) -> Result<String> {
    let rows = rows(report)?;
    let mut text = String::new();
    for (placement, title) in [("any", ANY_PROCESSOR), ("one-cpu", ONE_PROCESSOR)] {
        text += &table(title, &SINGLE, of(rows, 1, 1, placement));
    }
    for (outstanding, connections) in [(16, 1), (64, 1), (16, 16)] {
        let plural = if connections == 1 { "" } else { "s" };
        let title = format!(
            "{outstanding} at once on {connections} connection{plural}, thousand operations a second and CPU of each"
        );
        text += &table(&title, &MANY, of(rows, outstanding, connections, "any"));
    }
    text += &sizes(report);
    Ok(text)
}

/// The summary of BENCHMARKS.md: each operation in three arrangements.
pub(super) fn summary(report: &Value) -> Result<String> {
    let rows = rows(report)?;
    let mut text = String::from(
        "| operation | one at a time, one processor: Curt | Ganesha | | 16 at once on one connection: Curt | Ganesha | | CPU of each, 64 at once: Curt | Ganesha |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for single in of(rows, 1, 1, "one-cpu") {
        let name = text_of(single, "op");
        let same = |outstanding| of(rows, outstanding, 1, "any").find(move |row| text_of(row, "op") == name);
        let (Some(sixteen), Some(all)) = (same(16), same(64)) else {
            continue;
        };
        let times = faster(single, GoalMeasure::Time);
        let rates = faster(sixteen, GoalMeasure::Rate);
        let _ = writeln!(
            text,
            "| {name} | {} µs | {} µs | {times} | {} k/s | {} k/s | {rates} | {} µs | {} µs |",
            tenths(number(single, "curt_us")),
            tenths(peer(single, "us")),
            thousands(number(sixteen, "ops_per_s")),
            thousands(peer(sixteen, "ops_per_s")),
            tenths(number(all, "cpu_us")),
            tenths(peer(all, "cpu_us")),
        );
    }
    Ok(text)
}

fn table<'a>(title: &str, columns: &[Column], rows: impl Iterator<Item = &'a Value>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    let mut text = format!("{title}:\n\n{}{}|\n", line(heads), "|---".repeat(columns.len()));
    for row in rows {
        text += &line(columns.iter().map(|(_, cell)| cell(row)).collect());
    }
    text.push('\n');
    text
}

/// The document's table: a line for each size, its passes side by side.
fn sizes(report: &Value) -> String {
    let rows = report["sizes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = String::from(
        "The document's table, client and servers on one processor (µs for each size; with the file cache, without it, and their ratio with its interval of 95 %):\n\n\
         | KiB | write | rewrite | read | reread |\n|---|---|---|---|---|\n",
    );
    for passes in rows.chunks(4) {
        let bytes = passes.first().and_then(|row| row["bytes"].as_u64()).unwrap_or(0);
        let _ = write!(text, "| {} |", bytes >> 10);
        for row in passes {
            let slower = number(row, "ratio_low").is_some_and(|low| low > 1.02);
            let _ = write!(
                text,
                " {} / {}: {}{} |",
                tenths(number(row, "on_us")),
                tenths(number(row, "off_us")),
                interval(row),
                if slower { " **loses**" } else { "" },
            );
        }
        text.push('\n');
    }
    text
}

fn rows(report: &Value) -> Result<&[Value]> {
    let rows = report["rows"].as_array().context("the benchmark printed no rows")?;
    Ok(rows)
}

fn of<'a>(
    rows: &'a [Value],
    outstanding: u64,
    connections: u64,
    placement: &'a str,
) -> impl Iterator<Item = &'a Value> {
    rows.iter().filter(move |row| {
        row["outstanding"].as_u64() == Some(outstanding)
            && row["connections"].as_u64() == Some(connections)
            && row["placement"].as_str() == Some(placement)
    })
}

fn text_of<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

fn number(row: &Value, key: &str) -> Option<f64> {
    row[key].as_f64()
}

fn peer(row: &Value, key: &str) -> Option<f64> {
    row["peers"][PEER][key].as_f64()
}

/// The ratio of two numbers.
fn factor(one: Option<f64>, other: Option<f64>) -> String {
    match one.zip(other) {
        Some((one, other)) if other > 0.0 => format!("{:.2} times", one / other),
        _ => String::new(),
    }
}

/// The factor by which Curt is better; below 1 it is worse.
fn faster(row: &Value, measure: GoalMeasure) -> String {
    let (more, less) = match measure {
        GoalMeasure::Rate => (number(row, "ops_per_s"), peer(row, "ops_per_s")),
        GoalMeasure::Processor => (peer(row, "cpu_us"), number(row, "cpu_us")),
        GoalMeasure::Time | GoalMeasure::ByFloor | GoalMeasure::ByGetattr => {
            (peer(row, "us"), number(row, "curt_us"))
        }
    };
    match more.zip(less) {
        Some((more, less)) if less > 0.0 => {
            // Rounded as shown, so that a goal that is shown as reached counts as reached.
            let factor = (more / less * 100.0).round() / 100.0;
            let word = if factor < 1.0 { " **loses**" } else { "" };
            format!("{factor:.2} times{word}{}", missed(row, measure, factor))
        }
        _ => String::new(),
    }
}

fn by_floor(row: &Value) -> String {
    let ratio = number(row, "ratio").unwrap_or(0.0);
    let shown = (ratio * 100.0).round() / 100.0;
    format!("{}{}", interval(row), missed(row, GoalMeasure::ByFloor, shown))
}

fn by_getattr(row: &Value) -> String {
    let shown = (number(row, "by_getattr").unwrap_or(0.0) * 100.0).round() / 100.0;
    format!("{shown:.2}{}", missed(row, GoalMeasure::ByGetattr, shown))
}

fn interval(row: &Value) -> String {
    let of = |key| number(row, key).unwrap_or(0.0);
    format!("{:.2} ({:.2} to {:.2})", of("ratio"), of("ratio_low"), of("ratio_high"))
}

fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}"))
}

fn thousands(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{:.0}", value / 1000.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let row = |outstanding, placement, curt: f64| {
            json!({"op": "GETATTR", "bytes": null, "outstanding": outstanding, "connections": 1, "placement": placement,
                "echo_us": 7.0, "floor_us": 8.0, "curt_us": curt, "curt_p99_us": 20.0, "ratio": 1.05, "ratio_low": 1.0, "ratio_high": 1.1,
                "ops_per_s": 300_000.0, "cpu_us": 2.0, "filecache_off_us": null, "mount_us": null,
                "peers": {"ganesha": {"us": 16.0, "ops_per_s": 30_000.0, "cpu_us": 29.0}}})
        };
        json!({
            "rows": [row(1, "any", 8.0), row(1, "one-cpu", 32.0), row(16, "any", 8.0), row(64, "any", 8.0)],
            "sizes": [{"bytes": 1024, "pass": "write", "on_us": 2.0, "off_us": 1.0, "ratio": 2.0, "ratio_low": 1.5, "ratio_high": 2.5}],
        })
    }

    /// The lines of a table's heading are those above the ones that rule them off.
    fn headings(text: &str) -> Vec<&str> {
        let lines: Vec<&str> = text.lines().collect();
        let pairs = lines.windows(2).filter(|pair| pair[1].starts_with("|---"));
        pairs.map(|pair| pair[0]).collect()
    }

    #[test]
    fn benchmarks_has_the_tables_that_are_written() {
        let document = std::fs::read_to_string(crate::root().join("BENCHMARKS.md")).unwrap_or_default();
        let tables = [
            ("latency", benchmarks(&report())),
            ("latency-summary", summary(&report())),
            ("latency-4.1", of_sessions(&mut report())),
        ];
        for (name, written) in tables {
            let begin = document.split_once(&format!("<!-- {name}: begin -->"));
            let end = begin.and_then(|(_, rest)| rest.split_once(&format!("<!-- {name}: end -->")));
            let (between, _) = end.unwrap_or_default();
            assert_eq!(headings(between), headings(&written.unwrap_or_default()), "{name}");
        }
    }

    #[test]
    fn rows_that_lose_or_miss_their_goal_say_so() {
        let text = benchmarks(&report()).unwrap_or_default();
        assert!(
            text.contains("| 1.05 (1.00 to 1.10) | – | – | 16.0 | 2.00 times | 2.00 times | 2.29 times |"),
            "{text}"
        );
        assert!(
            text.contains("| 16.0 | 0.50 times **loses** **missed** (2.00) | 2.00 times | 2.29 times |"),
            "{text}"
        );
        assert!(text.contains("| 1 | 2.0 / 1.0: 2.00 (1.50 to 2.50) **loses** |"), "{text}");
    }

    #[test]
    fn the_short_table_has_a_row_for_each_operation() {
        let text = summary(&report()).unwrap_or_default();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("| 300 k/s | 30 k/s | 10.00 times | 2.0 µs | 29.0 µs |"), "{text}");
    }
}
