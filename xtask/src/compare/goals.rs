//! The goals of the server, with which the tables compare the measurements.

use serde_json::Value;

/// The measure of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoalMeasure {
    /// The time divided by that of the floor: a maximum.
    ByFloor,
    /// The time divided by that of GETATTR: a maximum.
    ByGetattr,
    /// The peer's time divided by Curt's: a minimum.
    Time,
    /// Curt's operations per second divided by the peer's: a minimum.
    Rate,
    /// The peer's processor time of an operation divided by Curt's: a minimum.
    Processor,
}

/// A goal of some operations in one arrangement.
#[derive(Clone, Copy)]
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
const WITH_STATE: &[&str] = &["OPEN", "CLOSE"];
const OF_SESSIONS: &[&str] = &["GETATTR", "LOOKUP", "READ", "WRITE UNSTABLE", "OPEN", "CLOSE"];

/// The goals of NFSv4.1, whose operations come after SEQUENCE and PUTFH.
const SESSION_GOALS: [LatencyGoal; 8] = [
    alone(GoalMeasure::ByFloor, &["GETATTR"], "any", 1.20),
    alone(GoalMeasure::ByFloor, &["GETATTR"], "one-cpu", 1.20),
    alone(GoalMeasure::ByFloor, WITH_DATA, "any", 1.25),
    alone(GoalMeasure::ByFloor, WITH_DATA, "one-cpu", 1.25),
    alone(GoalMeasure::ByGetattr, WITH_STATE, "any", 2.0),
    alone(GoalMeasure::ByGetattr, WITH_STATE, "one-cpu", 2.0),
    many(GoalMeasure::Processor, OF_SESSIONS, 16, 1, 5.0),
    LatencyGoal { placement: "one-cpu", ..many(GoalMeasure::Processor, OF_SESSIONS, 16, 1, 5.0) },
];

/// The goals of NFSv3; READ and WRITE are of 4 KiB.
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

/// The mark of a row that misses its goal; empty if it reaches the goal, or there is none. A row
/// names its version, if that is not 3.
pub(super) fn missed(row: &Value, measure: GoalMeasure, factor: f64) -> String {
    let is_of = |goal: &&LatencyGoal| {
        goal.measure == measure
            && row["op"].as_str().is_some_and(|name| goal.operations.contains(&name))
            && row["outstanding"].as_u64() == Some(goal.outstanding)
            && row["connections"].as_u64() == Some(goal.connections)
            && row["placement"].as_str() == Some(goal.placement)
    };
    let reaches = |goal: &&LatencyGoal| match measure {
        GoalMeasure::ByFloor | GoalMeasure::ByGetattr => factor <= goal.factor,
        GoalMeasure::Time | GoalMeasure::Rate | GoalMeasure::Processor => factor >= goal.factor,
    };
    let goals = if row["vers"].as_str() == Some("4.1") { &SESSION_GOALS } else { &GOALS };
    goals
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

    #[test]
    fn the_goals_of_a_row_are_those_of_its_version() {
        let row = |op, outstanding, placement| json!({"op": op, "outstanding": outstanding, "connections": 1, "placement": placement, "vers": "4.1"});
        for placement in ["any", "one-cpu"] {
            let getattr = row("GETATTR", 1, placement);
            assert_eq!(missed(&getattr, GoalMeasure::ByFloor, 1.20), "");
            assert_eq!(missed(&getattr, GoalMeasure::ByFloor, 1.21), " **missed** (1.20)");
            assert_eq!(missed(&row("WRITE UNSTABLE", 1, placement), GoalMeasure::ByFloor, 1.25), "");
            assert_eq!(missed(&row("READ", 1, placement), GoalMeasure::ByFloor, 1.26), " **missed** (1.25)");
            assert_eq!(missed(&row("OPEN", 1, placement), GoalMeasure::ByGetattr, 2.0), "");
            assert_eq!(
                missed(&row("CLOSE", 1, placement), GoalMeasure::ByGetattr, 2.01),
                " **missed** (2.00)"
            );
            assert_eq!(
                missed(&row("OPEN", 16, placement), GoalMeasure::Processor, 4.99),
                " **missed** (5.00)"
            );
        }
        assert_eq!(missed(&row("GETATTR", 1, "one-cpu"), GoalMeasure::Time, 1.0), "", "of NFSv3 only");
    }
}
