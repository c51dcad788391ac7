//! The seed of all random choices of one run, so that results are reproducible.

use std::str::FromStr;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// The default seed.
const USUAL: u64 = 20_817;

/// The seed of this run, once set.
static CHOSEN: OnceLock<u64> = OnceLock::new();

/// A requested seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestSeed {
    Usual,
    Number(u64),
    /// A new one each time.
    Random,
}

impl FromStr for TestSeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(Self::Random),
            _ => text.parse().map(Self::Number).map_err(|_| "neither a number nor \"random\"".to_owned()),
        }
    }
}

impl TestSeed {
    /// Sets the seed for everything that runs from now on, and prints it.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn choose(self) -> Result<()> {
        let number = match self {
            Self::Usual => USUAL,
            Self::Number(number) => number,
            Self::Random => {
                let mut bytes = [0; 4];
                getrandom(&mut bytes, GetRandomFlags::empty()).context("random numbers")?;
                u32::from_le_bytes(bytes).into()
            }
        };
        println!("== seed {}", CHOSEN.get_or_init(|| number));
        Ok(())
    }
}

/// The seed of this run.
pub(crate) fn chosen() -> u64 {
    CHOSEN.get().copied().unwrap_or(USUAL)
}

/// The environment variable of proptest, and its value.
pub(super) fn variable() -> (&'static str, String) {
    ("PROPTEST_RNG_SEED", chosen().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_number_or_random() {
        assert_eq!("17".parse(), Ok(TestSeed::Number(17)));
        assert_eq!("random".parse(), Ok(TestSeed::Random));
        for wrong in ["", "-1", "usual", "99999999999999999999"] {
            assert!(wrong.parse::<TestSeed>().is_err(), "{wrong}");
        }
    }
}
