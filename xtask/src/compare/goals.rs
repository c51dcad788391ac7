//! The goals of the server, with which the tables compare the measurements.

use serde_json::Value;

/// The measure of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoalMeasure {
    /// The time divided by that of the floor: a maximum.
    ByFloor,
    /// The peer's time divided by Curt's: a minimum.
    Time,
    /// Curt's operations per second divided by the peer's: a minimum.
    Rate,
    /// The peer's processor time of an operation divided by Curt's: a minimum.
    Processor,
}

/// A goal of some operations in one arrangement.
struct LatencyGoal {
    measure: GoalMeasure,
    operations: &'static [&'static str],
    outstanding: u64,
    connections: u64,
    placement: &'static str,
    factor: f64,
}

const SMALL: &[&str] = &["GETATTR", "ACCESS", "LOOKUP", "READ", "WRITE UNSTABLE"];
const WITHOUT_DATA: &[&str] = &["GETATTR", "ACCESS", "LOOKUP"];
const WITH_DATA: &[&str] = &["READ", "WRITE UNSTABLE"];

/// All goals; READ and WRITE are of 4 KiB.
const GOALS: [LatencyGoal; 8] = [
    alone(GoalMeasure::ByFloor, &["GETATTR"], "any", 1.10),
    alone(GoalMeasure::ByFloor, WITH_DATA, "any", 1.15),
    alone(GoalMeasure::Time, &["GETATTR", "READ"], "one-cpu", 2.0),
    alone(GoalMeasure::Time, &["LOOKUP", "WRITE UNSTABLE"], "one-cpu", 2.5),
    many(GoalMeasure::Rate, WITHOUT_DATA, 16, 1, 8.0),
    many(GoalMeasure::Rate, WITH_DATA, 16, 1, 5.0),
    many(GoalMeasure::Rate, SMALL, 16, 16, 5.0),
    many(GoalMeasure::Processor, SMALL, 64, 1, 8.0),
];

const fn alone(
    measure: GoalMeasure,
    operations: &'static [&'static str],
    placement: &'static str,
    factor: f64,
) -> LatencyGoal {
    LatencyGoal { measure, operations, outstanding: 1, connections: 1, placement, factor }
}

const fn many(
    measure: GoalMeasure,
    operations: &'static [&'static str],
    outstanding: u64,
    connections: u64,
    factor: f64,
) -> LatencyGoal {
    LatencyGoal { measure, operations, outstanding, connections, placement: "any", factor }
}

/// The mark of a row that misses its goal; empty if it reaches the goal, or there is none.
pub(super) fn missed(row: &Value, measure: GoalMeasure, factor: f64) -> String {
    let is_of = |goal: &&LatencyGoal| {
        goal.measure == measure
            && row["op"].as_str().is_some_and(|name| goal.operations.contains(&name))
            && row["outstanding"].as_u64() == Some(goal.outstanding)
            && row["connections"].as_u64() == Some(goal.connections)
            && row["placement"].as_str() == Some(goal.placement)
    };
    let reaches = |goal: &&LatencyGoal| match measure {
        GoalMeasure::ByFloor => factor <= goal.factor,
        GoalMeasure::Time | GoalMeasure::Rate | GoalMeasure::Processor => factor >= goal.factor,
    };
    GOALS
        .iter()
        .find(is_of)
        .filter(|goal| !reaches(goal))
        .map_or_else(String::new, |goal| format!(" **missed** ({:.2})", goal.factor))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_is_held_against_its_own_rows_and_missed_by_a_hundredth() {
        let row = |op, outstanding, placement| json!({"op": op, "outstanding": outstanding, "connections": 1, "placement": placement});
        let one = row("GETATTR", 1, "one-cpu");
        assert_eq!(missed(&one, GoalMeasure::Time, 2.0), "");
        assert_eq!(missed(&one, GoalMeasure::Time, 1.99), " **missed** (2.00)");
        assert_eq!(missed(&one, GoalMeasure::ByFloor, 9.0), "", "that is of any processor");
        let any = row("GETATTR", 1, "any");
        assert_eq!(missed(&any, GoalMeasure::ByFloor, 1.10), "");
        assert_eq!(missed(&any, GoalMeasure::ByFloor, 1.11), " **missed** (1.10)");
        assert_eq!(missed(&row("CREATE", 1, "any"), GoalMeasure::ByFloor, 9.0), "");
        assert_eq!(missed(&row("READ", 16, "any"), GoalMeasure::Rate, 4.9), " **missed** (5.00)");
    }
}
