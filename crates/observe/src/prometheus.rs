//! Prometheus' text format, version 0.0.4: families of numbers with their descriptions.
//!
//! This module owns names, escaping and the order of lines. Its output is always valid: names are
//! checked, label values and texts are escaped, a family's samples follow its HELP and TYPE, and
//! each family occurs once.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

use crate::counters::{Counter, Snapshot, Unit};

/// The Content-Type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Nanoseconds of a second: times are written in seconds.
const NANOSECONDS: f64 = 1e9;

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A sum that only grows; its name ends with `_total`.
    Counter,
    /// A current value.
    Gauge,
    /// Counts in buckets, with their sum.
    Histogram,
}

impl MetricType {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A text that is being written.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    begun: BTreeSet<String>,
}

/// A family whose samples are being written.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    exposition: &'a mut Exposition,
    name: String,
    kind: MetricType,
}

/// Adds families of one number each, with the same labels: name, meaning and value.
#[macro_export]
macro_rules! metrics {
    ($out:expr, $labels:expr; $($name:literal $meaning:literal $value:expr;)*) => {
        $($out.one($name, $meaning, $labels, $value);)*
    };
}

impl Exposition {
    /// Begins a family. The caller writes all its samples to the returned value.
    ///
    /// # Panics
    /// The name is invalid, does not fit the kind, or was used before: names are constants.
    pub fn family(&mut self, name: &str, kind: MetricType, meaning: &str) -> MetricFamily<'_> {
        assert!(is_name(name), "{name}");
        assert_eq!(name.ends_with("_total"), kind == MetricType::Counter, "{name}");
        assert!(self.begun.insert(name.to_owned()), "{name} is there already");
        let help = meaning.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        MetricFamily { exposition: self, name: name.to_owned(), kind }
    }

    /// A family of one number: a counter if its name ends with `_total`, otherwise a gauge.
    pub fn one(&mut self, name: &str, meaning: &str, labels: &[(&str, &str)], value: impl Display) {
        let kind = if name.ends_with("_total") { MetricType::Counter } else { MetricType::Gauge };
        self.family(name, kind, meaning).sample(labels, value);
    }

    /// A family for each row of a table of counters, with one sample for each of `rows`: labels and
    /// values.
    pub fn table<'l, L, C>(&mut self, prefix: &str, rows: &[(L, &Snapshot<C>)])
    where
        L: AsRef<[(&'l str, &'l str)]>,
        C: Counter,
    {
        for counter in C::ALL {
            let name = family_name(prefix, *counter);
            let mut family = self.family(&name, MetricType::Counter, counter.meaning());
            for (labels, values) in rows {
                let value = values.value(*counter);
                match counter.unit() {
                    Unit::Events | Unit::Requests | Unit::Bytes => family.sample(labels.as_ref(), value),
                    Unit::Nanoseconds => family.sample(labels.as_ref(), seconds(value)),
                }
            }
        }
    }

    /// The text so far.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }
}

impl MetricFamily<'_> {
    /// One number.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// One histogram: the counts of its buckets, the last of which has no bound, and their sum.
    /// Bounds and sum are given in nanoseconds and written in seconds.
    ///
    /// # Panics
    /// The family is not a histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], bounds: &[u64], classes: &[u64], sum: u64) {
        assert_eq!(self.kind, MetricType::Histogram, "{}", self.name);
        let mut total = 0;
        let classes = classes.iter().chain(std::iter::repeat(&0));
        let bounds = bounds.iter().map(|bound| seconds(*bound).to_string());
        let bounds = bounds.chain([String::from("+Inf")]);
        for (bound, count) in bounds.zip(classes) {
            total += count;
            self.line("_bucket", labels, Some(&bound), total);
        }
        self.line("_sum", labels, None, seconds(sum));
        self.line("_count", labels, None, total);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: impl Display) {
        let text = &mut self.exposition.text;
        text.push_str(&self.name);
        text.push_str(suffix);
        let bound = bound.map(|bound| ("le", bound));
        for (place, (name, value)) in labels.iter().copied().chain(bound).enumerate() {
            assert!(is_name(name) && !name.contains(':'), "{name}");
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let begin = if place == 0 { '{' } else { ',' };
            let _ = write!(text, "{begin}{name}=\"{value}\"");
        }
        if !labels.is_empty() || bound.is_some() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

/// Converts nanoseconds to seconds, the unit of Prometheus.
#[must_use]
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / NANOSECONDS
}

/// A row's family: `PREFIX_NAME_UNIT_total`, with the unit once.
fn family_name<C: Counter>(prefix: &str, counter: C) -> String {
    let name = counter.name();
    let (name, unit) = match counter.unit() {
        Unit::Events | Unit::Requests => (name, ""),
        Unit::Bytes => (name.trim_end_matches("_bytes"), "_bytes"),
        Unit::Nanoseconds => (name.trim_end_matches("_ns"), "_seconds"),
    };
    // "bytes_sent" becomes "sent_bytes".
    let name = match (name.strip_prefix("bytes_"), unit) {
        (Some(rest), "_bytes") => rest,
        _ => name,
    };
    // A name may not end like a series of a histogram.
    let name = name.strip_suffix("_sum").unwrap_or(name);
    format!("{prefix}_{name}{unit}_total")
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    bytes.next().is_some_and(first) && bytes.all(|byte| first(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientCounter, ClientCounters, OperationFigure, ServerCounter, TransportFigure};

    #[test]
    fn what_would_end_a_label_or_a_line_is_escaped() {
        let mut exposition = Exposition::default();
        let labels = [("mount_point", "/a\"b\\c\nd")];
        exposition.one("curt_x", "One\nmeaning \\ .", &labels, 1.5);
        assert_eq!(
            exposition.text(),
            "# HELP curt_x One\\nmeaning \\\\ .\n# TYPE curt_x gauge\ncurt_x{mount_point=\"/a\\\"b\\\\c\\nd\"} 1.5\n"
        );
    }

    #[test]
    fn a_histogram_counts_up_to_infinity() {
        let mut exposition = Exposition::default();
        let mut family = exposition.family("curt_t_seconds", MetricType::Histogram, "Times.");
        family.histogram(&[("procedure", "READ")], &[1_000_000, 2_000_000], &[3, 0, 4], 5_000_000_000);
        let lines: Vec<String> = exposition.text().lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "curt_t_seconds_bucket{procedure=\"READ\",le=\"0.001\"} 3",
                "curt_t_seconds_bucket{procedure=\"READ\",le=\"0.002\"} 3",
                "curt_t_seconds_bucket{procedure=\"READ\",le=\"+Inf\"} 7",
                "curt_t_seconds_sum{procedure=\"READ\"} 5",
                "curt_t_seconds_count{procedure=\"READ\"} 7",
            ]
        );
    }

    #[test]
    fn every_table_gives_a_family_for_each_row() {
        fn families<C: Counter>() {
            let names: BTreeSet<String> = C::ALL.iter().map(|row| family_name("curt", *row)).collect();
            assert_eq!(names.len(), C::ALL.len(), "{names:?}");
            for name in names {
                assert!(is_name(&name) && !name.contains("bytes_bytes"), "{name}");
            }
        }
        families::<ClientCounter>();
        families::<ServerCounter>();
        families::<OperationFigure>();
        families::<TransportFigure>();
        let counters = ClientCounters::default();
        counters.add(ClientCounter::WriteResent, 7);
        let mut exposition = Exposition::default();
        exposition.table("curt_mount", &[([("mount_point", "/mnt")], &counters.snapshot().events)]);
        let text = exposition.text();
        assert!(text.contains("curt_mount_write_resent_bytes_total{mount_point=\"/mnt\"} 7\n"), "{text}");
    }

    #[test]
    #[should_panic(expected = "is there already")]
    fn a_family_is_begun_once() {
        let mut exposition = Exposition::default();
        exposition.one("curt_x", "X.", &[], 1);
        exposition.one("curt_x", "X.", &[], 1);
    }
}
