//! Which events a ring keeps.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::super::event::{Event, EventFrequency};

/// Which events a ring keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RingLevel {
    /// None.
    Off,
    /// Those that happen rarely.
    Rare,
    /// Also those that messages on the wire cause.
    #[default]
    Request,
    /// All.
    Operation,
}

impl RingLevel {
    /// Every level.
    pub const ALL: [Self; 4] = [Self::Off, Self::Rare, Self::Request, Self::Operation];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Rare => "rare",
            Self::Request => "request",
            Self::Operation => "operation",
        }
    }

    /// The events of this level.
    #[must_use]
    pub fn events(self) -> Vec<Event> {
        let most = match self {
            Self::Off => return Vec::new(),
            Self::Rare => EventFrequency::Rare,
            Self::Request => EventFrequency::Request,
            Self::Operation => EventFrequency::Operation,
        };
        let all = Event::ALL.iter().copied();
        all.filter(|event| event.description().frequency <= most)
            .collect()
    }
}

impl fmt::Display for RingLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown level.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected off, rare, request or operation")]
pub struct UnknownRingLevel;

impl FromStr for RingLevel {
    type Err = UnknownRingLevel;

    fn from_str(word: &str) -> Result<Self, UnknownRingLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == word)
            .ok_or(UnknownRingLevel)
    }
}
