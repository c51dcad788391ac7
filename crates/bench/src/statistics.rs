//! Medians with their confidence intervals, and 99th percentiles. They assume no distribution of
//! the values.

use serde::Serialize;
use serde_json::{Value, json};

/// The confidence level of an interval.
const CONFIDENCE: f64 = 0.95;

/// Returns the median; of an even number of values the lower of the middle two. 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// A median and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ConfidenceInterval {
    /// The mean of the two middle values, or the middle one.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A measurement that is compared with another.
#[derive(Debug)]
pub struct ComparedSide<'a> {
    /// Its name in reports.
    pub name: &'a str,
    /// Its value in each round.
    pub rounds: Vec<f64>,
}

impl ComparedSide<'_> {
    fn json(&self) -> Value {
        json!({ "name": self.name, "median": median(&self.rounds), "rounds": self.rounds })
    }
}

/// Returns two interleaved measurements as JSON, and the median of the rounds' ratios, Curt by
/// reference.
pub fn compared(what: &str, unit: &str, ours: &ComparedSide<'_>, reference: &ComparedSide<'_>) -> Value {
    let ratios: Vec<f64> =
        ours.rounds.iter().zip(&reference.rounds).map(|(ours, reference)| ours / reference).collect();
    let (ours, reference) = (ours.json(), reference.json());
    json!({ "what": what, "unit": unit, "ours": ours, "reference": reference, "ratio": median(&ratios) })
}

/// Returns the median of the ratios of measurements in the same round, with its interval.
pub fn paired(ours: &[f64], reference: &[f64]) -> ConfidenceInterval {
    let ratios: Vec<f64> = ours.iter().zip(reference).map(|(ours, reference)| ours / reference).collect();
    interval(&ratios)
}

/// Returns the median with its interval by order statistics: the number of values below the true
/// median is binomial, with 1/2.
pub fn interval(values: &[f64]) -> ConfidenceInterval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outside = left_out(sorted.len());
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    ConfidenceInterval {
        median: middle(&sorted),
        low: at(outside),
        high: at(sorted.len().saturating_sub(1 + outside)),
    }
}

/// The mean of the two middle values, or the middle one.
fn middle(sorted: &[f64]) -> f64 {
    let upper = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    f64::midpoint(median(sorted), upper)
}

/// The number of `count` sorted values on each side outside of the interval.
fn left_out(count: usize) -> usize {
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for below in 0..count / 2 {
        tail += probability;
        if 2.0 * tail > 1.0 - CONFIDENCE {
            return below.saturating_sub(1);
        }
        probability *= (count - below) as f64 / (below + 1) as f64;
    }
    count.saturating_sub(1) / 2
}

/// Returns the 99th percentile; 0 for no values.
pub fn p99(values: &mut [u32]) -> u32 {
    at_rank(values, 99, 100)
}

/// Returns the median of many values; 0 for no values.
pub fn p50(values: &mut [u32]) -> u32 {
    at_rank(values, 1, 2)
}

fn at_rank(values: &mut [u32], part: usize, whole: usize) -> u32 {
    if values.is_empty() {
        return 0;
    }
    let rank = (values.len() * part).div_ceil(whole).clamp(1, values.len());
    *values.select_nth_unstable(rank - 1).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_twenty_leaves_five_out_on_each_side() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(interval(&values), ConfidenceInterval { median: 10.5, low: 6.0, high: 15.0 });
        // Binomial(10, 1/2): 2 * (1 + 10) / 1024 = 2 % lie outside of the second and the ninth, 11
        // % with one more.
        assert_eq!(left_out(10), 1);
    }

    #[test]
    fn interval_of_few_values_is_all_of_them() {
        assert_eq!(interval(&[3.0, 1.0, 2.0]), ConfidenceInterval { median: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(interval(&[7.0]), ConfidenceInterval { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(interval(&[]).median.to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let compared = compared(
            "x",
            "s",
            &ComparedSide { name: "a", rounds: vec![2.0, 9.0, 4.0] },
            &ComparedSide { name: "b", rounds: vec![1.0, 3.0, 4.0] },
        );
        assert_eq!((&compared["ratio"], &compared["ours"]["median"]), (&json!(2.0), &json!(4.0)));
        let ratio = paired(&[2.0, 9.0, 4.0], &[1.0, 3.0, 4.0]);
        assert_eq!((ratio.median, ratio.low, ratio.high), (2.0, 1.0, 3.0));
    }

    #[test]
    fn a_hundredth_lies_above_p99() {
        let mut values: Vec<u32> = (1..=200).rev().collect();
        assert_eq!((p99(&mut values), p50(&mut values)), (198, 100));
        assert_eq!(p99(&mut []), 0);
        assert_eq!(p99(&mut [5]), 5);
    }
}
