//! The levels of a ring.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::super::event::{Event, EventFrequency};
use crate::named_enum;

named_enum! {
    /// The set of events that a ring receives.
    #[derive(Default)]
    RingLevel {
        Off "off" "None.";
        Rare "rare" "Those that happen rarely.";
        #[default]
        Request "request" "Also those that messages on the wire cause.";
        Operation "operation" "All.";
    }
}

impl RingLevel {
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
        all.filter(|event| event.description().frequency <= most).collect()
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
        Self::named(word).ok_or(UnknownRingLevel)
    }
}
