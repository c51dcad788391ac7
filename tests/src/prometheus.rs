//! A strict parser of Prometheus' text format 0.0.4, with the checks of `promtool check metrics`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

/// A sample's name with its labels, sorted: `name{a="b"}`.
type SampleKey = (String, BTreeMap<String, String>);

/// A parsed text.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<SampleKey, f64>);

/// A metric family and its comments.
struct SampleFamily {
    name: String,
    kind: String,
}

impl Samples {
    /// The value of a sample.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.0.get(&(name.to_owned(), labels.collect())).copied()
    }

    /// The sum of all samples of a name with this value of a label.
    #[must_use]
    pub fn of(&self, name: &str, label: &str, value: &str) -> f64 {
        let is_meant =
            |(key, _): &(&SampleKey, &f64)| key.0 == name && key.1.get(label).is_some_and(|it| it == value);
        self.0.iter().filter(is_meant).map(|(_, value)| value).sum()
    }

    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Parses a text.
    ///
    /// # Errors
    /// A line is invalid.
    pub fn parse(text: &str) -> Result<Self> {
        ensure!(text.ends_with('\n'), "the last line does not end");
        let mut samples = Self::default();
        let mut seen = BTreeSet::new();
        let mut family: Option<SampleFamily> = None;
        let mut help: Option<String> = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, meaning) = rest.split_once(' ').context(line.to_owned())?;
                ensure!(!meaning.trim().is_empty(), "{name} means nothing");
                ensure!(seen.insert(name.to_owned()), "{name} is announced twice");
                help = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').context(line.to_owned())?;
                ensure!(help.as_deref() == Some(name), "{name} has no HELP before it");
                check(name, kind)?;
                family = Some(SampleFamily { name: name.to_owned(), kind: kind.to_owned() });
            } else {
                let family = family.as_ref().context("a sample before any family")?;
                let (key, value) = sample(line).with_context(|| line.to_owned())?;
                let suffix = key.0.strip_prefix(&family.name).with_context(|| line.to_owned())?;
                let suffixes: &[&str] = match family.kind.as_str() {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                ensure!(suffixes.contains(&suffix), "{line} is not of {}", family.name);
                ensure!(samples.0.insert(key, value).is_none(), "{line} is there twice");
            }
        }
        samples.check_histograms()?;
        Ok(samples)
    }

    /// Bucket counts increase, and the last bucket is +Inf with the total count.
    fn check_histograms(&self) -> Result<()> {
        let mut buckets: BTreeMap<SampleKey, Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.0 {
            let Some(family) = name.strip_suffix("_bucket") else {
                continue;
            };
            let mut labels = labels.clone();
            let bound = labels.remove("le").context("a bucket without le")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse()? };
            buckets.entry((family.to_owned(), labels)).or_default().push((bound, *value));
        }
        for ((name, labels), mut bounds) in buckets {
            bounds.sort_by(|one, other| one.0.total_cmp(&other.0));
            ensure!(
                bounds.windows(2).all(|pair| pair[0].1 <= pair[1].1),
                "{name} {labels:?} shrinks: {bounds:?}"
            );
            let last = bounds.last().context("no bucket")?;
            let count = self.0.get(&(format!("{name}_count"), labels.clone())).copied();
            ensure!(
                last.0.is_infinite() && count == Some(last.1),
                "{name} {labels:?}: {bounds:?}, {count:?}"
            );
            ensure!(self.0.contains_key(&(format!("{name}_sum"), labels)), "{name} has no sum");
        }
        Ok(())
    }
}

/// promtool's rules for names.
fn check(name: &str, kind: &str) -> Result<()> {
    match kind {
        "counter" => ensure!(name.ends_with("_total"), "the counter {name} does not end with _total"),
        "gauge" | "histogram" => {
            for ending in ["_total", "_count", "_sum", "_bucket"] {
                ensure!(!name.ends_with(ending), "{name} ends with {ending}");
            }
        }
        other => bail!("{name} is a {other}"),
    }
    for unit in ["milliseconds", "microseconds", "nanoseconds", "kilobytes"] {
        ensure!(!name.contains(unit), "{name} is not in a base unit");
    }
    ensure!(is_name(name) && name == name.to_ascii_lowercase(), "{name} is no name");
    Ok(())
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn sample(line: &str) -> Result<(SampleKey, f64)> {
    let (head, value) = line.rsplit_once(' ').context("no value")?;
    let value: f64 = value.parse()?;
    ensure!(value.is_finite() && value >= 0.0, "the value is {value}");
    let Some((name, rest)) = head.split_once('{') else {
        ensure!(is_name(head), "{head} is no name");
        return Ok(((head.to_owned(), BTreeMap::new()), value));
    };
    ensure!(is_name(name), "{name} is no name");
    let mut rest = rest.strip_suffix('}').context("no end of the labels")?;
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").context("no value of a label")?;
        ensure!(is_name(label), "{label} is no name");
        let (text, after) = quoted(after)?;
        ensure!(labels.insert(label.to_owned(), text).is_none(), "{label} is there twice");
        rest = match after.strip_prefix(',') {
            Some(next) => next,
            None => {
                ensure!(after.is_empty(), "{after} after a label");
                after
            }
        };
    }
    Ok(((name.to_owned(), labels), value))
}

/// A label's value up to its quote, and the rest.
fn quoted(text: &str) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                other => bail!("{other:?} is escaped"),
            },
            other => value.push(other),
        }
    }
    bail!("a label does not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# HELP x_seconds X.\n# TYPE x_seconds histogram\n";

    #[test]
    fn what_breaks_a_rule_is_found() {
        let good = format!(
            "{HEAD}x_seconds_bucket{{a=\"b\\\"\",le=\"1\"}} 1\nx_seconds_bucket{{a=\"b\\\"\",le=\"+Inf\"}} 2\n\
             x_seconds_sum{{a=\"b\\\"\"}} 2.5\nx_seconds_count{{a=\"b\\\"\"}} 2\n"
        );
        let samples = Samples::parse(&good).ok();
        let count = samples.and_then(|samples| samples.value("x_seconds_count", &[("a", "b\"")]));
        assert_eq!(count, Some(2.0));
        for (from, to) in [
            ("+Inf", "2"),
            ("} 1\n", "} 3\n"),
            ("histogram", "counter"),
            ("# HELP x_seconds X.\n", ""),
            ("_sum", "_total"),
            (" 2.5", ""),
            ("a=\"b\\\"\",le=\"1\"", "a=\"b,le=\"1\""),
        ] {
            assert!(Samples::parse(&good.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}
