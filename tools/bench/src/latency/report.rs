//! What was measured, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::load::{LatencyOperation, Placement};

/// All of it; the keys are an interface.
#[derive(Debug, Default, Serialize)]
pub(super) struct LatencyReport {
    pub(super) rows: Vec<LatencyRow>,
    pub(super) sizes: Vec<SizeRow>,
}

/// One operation in one shape at one placement. Times are medians over the rounds, in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct LatencyRow {
    pub(super) op: LatencyOperation,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> LatencyReport {
        let figures = PeerFigures {
            us: Some(32.0),
            ops_per_s: Some(39_000.0),
            cpu_us: None,
        };
        LatencyReport {
            rows: vec![LatencyRow {
                op: LatencyOperation::WriteFileSync,
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
}
