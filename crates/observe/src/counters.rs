//! A table of counters: how rows are declared, counted, copied, subtracted and serialised.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::calls::CallCounts;
use crate::shard::Sharded;

/// The unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// An event.
    Events,
    /// A remote procedure call.
    Requests,
    /// A byte.
    Bytes,
    /// A nanosecond.
    Nanoseconds,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Events => "events",
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "nanoseconds",
        })
    }
}

/// A row of a counter table.
pub trait Counter: Copy + Eq + fmt::Debug + 'static {
    /// Every row, in the order in which they are printed.
    const ALL: &'static [Self];

    /// The position of this row in [`ALL`](Self::ALL).
    fn index(self) -> usize;

    /// The name, as printed and serialised: lower case with underscores, never changed once
    /// published.
    fn name(self) -> &'static str;

    /// The unit of the count.
    fn unit(self) -> Unit;

    /// The meaning of one count, a sentence.
    fn meaning(self) -> &'static str;
}

/// Declares a counter table: an enum whose variants are rows, with name, unit and meaning.
macro_rules! counter_table {
    ($(#[$outer:meta])* $table:ident { $($row:ident $name:literal $unit:ident $meaning:literal;)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $table {
            $(#[doc = $meaning] $row,)*
        }

        impl $crate::Counter for $table {
            const ALL: &'static [Self] = &[$(Self::$row,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self { $(Self::$row => $name,)* }
            }

            fn unit(self) -> $crate::Unit {
                match self { $(Self::$row => $crate::Unit::$unit,)* }
            }

            fn meaning(self) -> &'static str {
                match self { $(Self::$row => $meaning,)* }
            }
        }
    };
}

pub(crate) use counter_table;

/// The values of one table. Counting is one relaxed addition to this thread's shard and never
/// blocks.
pub struct Counters<C: Counter> {
    values: Sharded,
    rows: PhantomData<C>,
}

impl<C: Counter> Counters<C> {
    /// A table with every counter at 0.
    #[must_use]
    pub fn new() -> Self {
        Self { values: Sharded::new(C::ALL.len()), rows: PhantomData }
    }

    /// Counts one.
    pub fn count(&self, counter: C) {
        self.add(counter, 1);
    }

    /// Counts `amount` of the counter's unit.
    pub fn add(&self, counter: C, amount: u64) {
        self.values.add(counter.index(), amount);
    }

    /// The current value of one counter.
    #[must_use]
    pub fn value(&self, counter: C) -> u64 {
        self.values.sum(counter.index())
    }

    /// A copy of all current values. Each counter that is incremented meanwhile may or may not be
    /// included.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<C> {
        Snapshot { values: self.values.sums().collect(), rows: PhantomData }
    }
}

impl<C: Counter> Default for Counters<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Counter> fmt::Debug for Counters<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// The values of a table at one time, or the difference of two of these.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot<C: Counter> {
    values: Box<[u64]>,
    rows: PhantomData<C>,
}

impl<C: Counter> Snapshot<C> {
    /// The value of one counter.
    #[must_use]
    pub fn value(&self, counter: C) -> u64 {
        self.values[counter.index()]
    }

    /// The difference between `earlier` and this snapshot (0 where `earlier` has more).
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let values =
            self.values.iter().zip(&earlier.values).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { values, rows: PhantomData }
    }

    /// Every row with its value, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = (C, u64)> + '_ {
        C::ALL.iter().copied().zip(self.values.iter().copied())
    }
}

/// The counters of a client or a server at one time, or the difference of two of these.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub struct CallSnapshot<C: Counter> {
    /// Requests sent or executed, per operation.
    pub requests: CallCounts,
    /// The counters of the table.
    pub events: Snapshot<C>,
}

impl<C: Counter> Default for CallSnapshot<C> {
    fn default() -> Self {
        Self { requests: CallCounts::default(), events: Snapshot::default() }
    }
}

impl<C: Counter> CallSnapshot<C> {
    /// The difference between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self { requests: self.requests.since(&earlier.requests), events: self.events.since(&earlier.events) }
    }
}

/// The values of all rows, in the table's order.
///
/// # Panics
/// There are more or fewer values than rows.
impl<C: Counter> FromIterator<u64> for Snapshot<C> {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let values: Box<[u64]> = values.into_iter().collect();
        assert_eq!(values.len(), C::ALL.len(), "one value for each row");
        Self { values, rows: PhantomData }
    }
}

impl<C: Counter> Default for Snapshot<C> {
    fn default() -> Self {
        Self { values: C::ALL.iter().map(|_| 0).collect(), rows: PhantomData }
    }
}

impl<C: Counter> fmt::Debug for Snapshot<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.iter().filter(|(_, value)| *value != 0);
        f.debug_map().entries(counted.map(|(row, value)| (row.name(), value))).finish()
    }
}

impl<C: Counter> Serialize for Snapshot<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(C::ALL.len()))?;
        for (row, value) in self.iter() {
            map.serialize_entry(row.name(), &value)?;
        }
        map.end()
    }
}

/// Unknown names are ignored and missing ones are 0, so that a newer `curt stat` can read an older
/// mount and the other way round.
impl<'de, C: Counter> Deserialize<'de> for Snapshot<C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Values other than numbers are skipped: rows may be in an object with other fields.
        let named = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
        let values = C::ALL
            .iter()
            .map(|row| named.get(row.name()).and_then(serde_json::Value::as_u64).unwrap_or(0))
            .collect();
        Ok(Self { values, rows: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientCounter, ServerCounter};

    fn names_are_words_and_unique<C: Counter + PartialEq + fmt::Debug>() {
        let mut seen = std::collections::BTreeSet::new();
        for (position, row) in C::ALL.iter().enumerate() {
            assert_eq!(row.index(), position);
            assert!(seen.insert(row.name()), "{} twice", row.name());
            assert!(
                row.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{}",
                row.name()
            );
            assert!(row.meaning().ends_with('.'), "{}: {}", row.name(), row.meaning());
        }
    }

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_meaning() {
        names_are_words_and_unique::<ClientCounter>();
        names_are_words_and_unique::<ServerCounter>();
        names_are_words_and_unique::<crate::OperationFigure>();
        names_are_words_and_unique::<crate::TransportFigure>();
    }

    #[test]
    fn a_difference_holds_what_was_counted_between() {
        let counters = Counters::<ClientCounter>::new();
        counters.add(ClientCounter::NegHit, 3);
        let before = counters.snapshot();
        counters.count(ClientCounter::NegHit);
        counters.count(ClientCounter::OpenTotal);
        let difference = counters.snapshot().since(&before);
        assert_eq!(difference.value(ClientCounter::NegHit), 1);
        assert_eq!(difference.value(ClientCounter::OpenTotal), 1);
        assert_eq!(difference.iter().map(|(_, value)| value).sum::<u64>(), 2);
        assert_eq!(before.since(&counters.snapshot()), Snapshot::default());
    }
}
