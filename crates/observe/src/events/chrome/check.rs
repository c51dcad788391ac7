//! The rules of Chrome's trace format. Only tests use them: of this crate, of whole programs, and
//! of fuzzed recordings.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// Checks a trace against the rules of its format: an array of objects that each have `ph`, `ts`,
/// `pid`, `tid`, `name` and `args`, of known phases; slices that end on their thread in the reverse
/// order of their beginning, and asynchronous ones by category and id; non-decreasing time on each
/// thread.
///
/// # Errors
/// The first violated rule.
pub(super) fn check(text: &str) -> Result<usize, String> {
    let events: Vec<Json> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut open: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut asynchronous: BTreeMap<String, String> = BTreeMap::new();
    let mut times: BTreeMap<u64, f64> = BTreeMap::new();
    for (number, event) in events.iter().enumerate() {
        let wrong = |what: &str| format!("event {number}: {what}: {event}");
        let text = |key: &str| event[key].as_str().ok_or_else(|| wrong(key));
        let (phase, name) = (text("ph")?, text("name")?.to_owned());
        let ts = event["ts"].as_f64().ok_or_else(|| wrong("ts"))?;
        event["pid"].as_u64().ok_or_else(|| wrong("pid"))?;
        let tid = event["tid"].as_u64().ok_or_else(|| wrong("tid"))?;
        if !event["args"].is_object() {
            return Err(wrong("args"));
        }
        if phase != "M" && times.insert(tid, ts).is_some_and(|before| before > ts) {
            return Err(wrong("time goes back"));
        }
        let key = || Ok::<_, String>(format!("{} {}", text("cat")?, text("id")?));
        match phase {
            "M" => {}
            "i" if ["t", "p", "g"].contains(&text("s")?) => {}
            "B" => open.entry(tid).or_default().push(name),
            "E" if open.entry(tid).or_default().pop().as_ref() == Some(&name) => {}
            "b" if asynchronous.insert(key()?, name.clone()).is_none() => {}
            "e" if asynchronous.remove(&key()?) == Some(name) => {}
            _ => return Err(wrong("an unknown phase, or an end without a beginning")),
        }
    }
    let unended = open.values().map(Vec::len).sum::<usize>() + asynchronous.len();
    if unended > 0 {
        return Err(format!("{unended} never end"));
    }
    Ok(events.len())
}
