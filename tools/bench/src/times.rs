//! Times that are laid side by side: medians of interleaved rounds.

use serde::Serialize;

use super::spent::ProcessorShare;
use super::statistics::median;

/// Two things measured in turns.
#[derive(Debug, Serialize)]
pub(super) struct ComparedTimes {
    /// What is compared.
    pub(super) what: String,
    /// The unit of the values.
    pub(super) unit: &'static str,
    /// Ours: its name and each round's value.
    pub(super) ours: ComparedSide,
    /// The reference.
    pub(super) reference: ComparedSide,
    /// The median of the rounds' ratios, ours by reference.
    pub(super) ratio: f64,
}

/// One side.
#[derive(Debug, Serialize)]
pub(super) struct ComparedSide {
    pub(super) name: String,
    pub(super) median: f64,
    pub(super) rounds: Vec<f64>,
    /// Of processor time, if it is that: who spent it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) shares: Vec<ProcessorShare>,
}

impl ComparedSide {
    pub(super) fn new(name: &str, rounds: Vec<f64>) -> Self {
        Self {
            name: name.to_owned(),
            median: median(&rounds),
            rounds,
            shares: Vec::new(),
        }
    }

    /// The same, with the medians of each one's share in it.
    pub(super) fn shared_by(mut self, shares: Vec<ProcessorShare>) -> Self {
        self.shares = shares;
        self
    }

    /// Who spent it, for people; nothing if nobody knows.
    fn sharers(&self) -> String {
        let one = |share: &ProcessorShare| format!("{} {:.2} + {:.2}", share.who, share.user, share.system);
        let all: Vec<String> = self.shares.iter().map(one).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!(" [user + system: {}]", all.join(", ")),
        }
    }
}

impl ComparedTimes {
    /// Rounds that belong together have the same index.
    pub(super) fn new(what: &str, unit: &'static str, ours: ComparedSide, reference: ComparedSide) -> Self {
        let ratios: Vec<f64> = ours
            .rounds
            .iter()
            .zip(&reference.rounds)
            .map(|(ours, reference)| ours / reference)
            .collect();
        Self {
            what: what.to_owned(),
            unit,
            ours,
            reference,
            ratio: median(&ratios),
        }
    }

    /// A line for people.
    pub(super) fn line(&self) -> String {
        let spread = |side: &ComparedSide| {
            let least = side.rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = side.rounds.iter().copied().fold(0.0, f64::max);
            format!(
                "{} {:.2} {} ({least:.2} to {most:.2}){}",
                side.name,
                side.median,
                self.unit,
                side.sharers()
            )
        };
        format!(
            "{}: {}, {}, ratio {:.2}",
            self.what,
            spread(&self.ours),
            spread(&self.reference),
            self.ratio
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rounds_that_belong_together() {
        let compared = ComparedTimes::new(
            "x",
            "s",
            ComparedSide::new("a", vec![2.0, 9.0, 4.0]),
            ComparedSide::new("b", vec![1.0, 3.0, 4.0]),
        );
        assert!((compared.ratio - 2.0).abs() < 1e-9 && (compared.ours.median - 4.0).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }
}
