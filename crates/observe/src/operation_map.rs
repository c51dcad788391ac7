//! JSON of tables that have a row for each operation: an object whose keys are those of the
//! operations, sorted.

use std::collections::BTreeMap;

use curt_proto::Operation;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<T: Serialize, S: Serializer>(
    map: &BTreeMap<Operation, T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let keyed: BTreeMap<_, _> = map.iter().map(|(operation, value)| (operation.key(), value)).collect();
    keyed.serialize(serializer)
}

/// Operations that only a later release knows are left out.
pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Operation, T>, D::Error> {
    let keyed = BTreeMap::<String, T>::deserialize(deserializer)?;
    Ok(keyed.into_iter().filter_map(|(key, value)| Some((Operation::from_key(&key)?, value))).collect())
}
