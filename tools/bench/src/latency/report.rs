//! What was measured, as JSON and as tables.

use std::collections::BTreeMap;

use curt_bench::report::lay_out;
use serde::Serialize;

use super::shape::{Operation, Placement};

/// All of it; the keys are an interface.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) sizes: Vec<SizeRow>,
}

/// One operation in one shape at one placement. Times are medians over the rounds, in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) op: Operation,
    /// Data of each operation; none where no data move.
    pub(super) bytes: Option<usize>,
    /// Operations under way on each connection.
    pub(super) outstanding: usize,
    pub(super) connections: usize,
    pub(super) placement: Placement,
    pub(super) echo_us: f64,
    pub(super) floor_us: f64,
    pub(super) curt_us: f64,
    /// What 99 of 100 operations did not exceed.
    pub(super) curt_p99_us: f64,
    /// Ours by the floor's, of the same round: the median, and its interval of 95 %.
    pub(super) ratio: f64,
    pub(super) ratio_low: f64,
    pub(super) ratio_high: f64,
    /// Of ours.
    pub(super) ops_per_s: f64,
    /// Processor time of our server for each operation.
    pub(super) cpu_us: Option<f64>,
    pub(super) filecache_off_us: Option<f64>,
    /// The system call on a mount, for one operation at a time.
    pub(super) mount_us: Option<f64>,
    pub(super) peers: BTreeMap<String, PeerFigures>,
}

/// Another server's figures.
#[derive(Debug, Serialize)]
pub(super) struct PeerFigures {
    /// None where it could not be put on the others' processor.
    pub(super) us: Option<f64>,
    pub(super) ops_per_s: Option<f64>,
    /// None where its process is not known.
    pub(super) cpu_us: Option<f64>,
}

/// One size and pass of the document's table, with the file cache and without.
#[derive(Debug, Serialize)]
pub(super) struct SizeRow {
    pub(super) bytes: usize,
    pub(super) pass: &'static str,
    pub(super) on_us: f64,
    pub(super) off_us: f64,
    /// With by without, of the same round: the median, and its interval of 95 %.
    pub(super) ratio: f64,
    pub(super) ratio_low: f64,
    pub(super) ratio_high: f64,
}

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for placement in Placement::ALL {
            let rows: Vec<&Row> = self
                .rows
                .iter()
                .filter(|row| row.placement == placement)
                .collect();
            if rows.is_empty() {
                continue;
            }
            text += match placement {
                Placement::Any => "Client and servers on any processor (µs, medians)\n\n",
                Placement::OneCpu => "Client and servers on one processor (µs, medians)\n\n",
            };
            text += &lay_out(&table(&rows));
            text.push('\n');
        }
        if !self.sizes.is_empty() {
            text += "With the file cache and without, on one processor (µs for each size, medians)\n\n";
            text += &lay_out(&sizes_table(&self.sizes));
        }
        text
    }
}

fn table(rows: &[&Row]) -> Vec<Vec<String>> {
    let mut head: Vec<String> = [
        "operation",
        "conn x out",
        "echo",
        "floor",
        "curt",
        "p99",
        "ratio to floor",
        "kops/s",
        "CPU",
        "cache off",
        "mount",
    ]
    .map(str::to_owned)
    .to_vec();
    let names: Vec<&String> = rows
        .first()
        .map_or_else(Vec::new, |row| row.peers.keys().collect());
    for name in &names {
        head.extend([(*name).clone(), format!("{name} kops/s"), format!("{name} CPU")]);
    }
    let mut lines = vec![head];
    for row in rows {
        let mut line = vec![
            row.op.name().to_owned(),
            format!("{} x {}", row.connections, row.outstanding),
            microseconds(Some(row.echo_us)),
            microseconds(Some(row.floor_us)),
            microseconds(Some(row.curt_us)),
            microseconds(Some(row.curt_p99_us)),
            with_interval(row.ratio, row.ratio_low, row.ratio_high),
            thousands(Some(row.ops_per_s)),
            microseconds(row.cpu_us),
            microseconds(row.filecache_off_us),
            microseconds(row.mount_us),
        ];
        for name in &names {
            let peer = row.peers.get(*name);
            line.push(microseconds(peer.and_then(|peer| peer.us)));
            line.push(thousands(peer.and_then(|peer| peer.ops_per_s)));
            line.push(microseconds(peer.and_then(|peer| peer.cpu_us)));
        }
        lines.push(line);
    }
    lines
}

fn sizes_table(rows: &[SizeRow]) -> Vec<Vec<String>> {
    let head = ["KiB", "pass", "on", "off", "on by off"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        lines.push(vec![
            (row.bytes >> 10).to_string(),
            row.pass.to_owned(),
            microseconds(Some(row.on_us)),
            microseconds(Some(row.off_us)),
            with_interval(row.ratio, row.ratio_low, row.ratio_high),
        ]);
    }
    lines
}

fn with_interval(ratio: f64, low: f64, high: f64) -> String {
    format!("{ratio:.2} ({low:.2} to {high:.2})")
}

fn microseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn thousands(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.0}", value / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figures = PeerFigures {
            us: Some(32.0),
            ops_per_s: Some(39_000.0),
            cpu_us: None,
        };
        Report {
            rows: vec![Row {
                op: Operation::WriteFileSync,
                bytes: Some(4096),
                outstanding: 1,
                connections: 1,
                placement: Placement::OneCpu,
                echo_us: 7.0,
                floor_us: 8.0,
                curt_us: 9.0,
                curt_p99_us: 19.5,
                ratio: 1.125,
                ratio_low: 1.0,
                ratio_high: 1.25,
                ops_per_s: 100_000.0,
                cpu_us: Some(2.5),
                filecache_off_us: None,
                mount_us: None,
                peers: BTreeMap::from([("ganesha".to_owned(), figures)]),
            }],
            sizes: vec![SizeRow {
                bytes: 1024,
                pass: "rewrite",
                on_us: 8.0,
                off_us: 10.0,
                ratio: 0.75,
                ratio_low: 0.5,
                ratio_high: 1.0,
            }],
        }
    }

    #[test]
    fn json_has_exactly_the_keys_that_programs_read() {
        let json = serde_json::to_string(&report()).expect("it is plain data");
        assert_eq!(
            json,
            concat!(
                r#"{"rows":[{"op":"WRITE FILE_SYNC","bytes":4096,"outstanding":1,"connections":1,"placement":"one-cpu","#,
                r#""echo_us":7.0,"floor_us":8.0,"curt_us":9.0,"curt_p99_us":19.5,"ratio":1.125,"ratio_low":1.0,"ratio_high":1.25,"#,
                r#""ops_per_s":100000.0,"cpu_us":2.5,"filecache_off_us":null,"mount_us":null,"#,
                r#""peers":{"ganesha":{"us":32.0,"ops_per_s":39000.0,"cpu_us":null}}}],"#,
                r#""sizes":[{"bytes":1024,"pass":"rewrite","on_us":8.0,"off_us":10.0,"ratio":0.75,"ratio_low":0.5,"ratio_high":1.0}]}"#
            )
        );
    }

    #[test]
    fn the_table_shows_peers_and_what_is_missing() {
        let text = report().text();
        for shown in [
            "one processor",
            "WRITE FILE_SYNC",
            "ganesha kops/s",
            "39",
            "1.12 (1.00 to 1.25)",
            "rewrite",
        ] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
        assert!(!text.contains("any processor"));
    }
}
