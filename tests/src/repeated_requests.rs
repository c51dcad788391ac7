//! Requests that a run of page repeats because of its duration.

/// Names that each view of page looks up, with no other of their directories between: nine
/// `en.json`, and `MessagesEn.php`. A program could be waiting to create them.
const PROBED_NAMES: usize = 10;
/// Such a name is asked about again after these times, in seconds (SEMANTICS.md, name-6).
const PROBED_AFTER: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// Maximum number of these LOOKUPs in a run of this many seconds.
#[must_use]
pub fn create_probes(seconds: f64) -> usize {
    PROBED_NAMES * PROBED_AFTER.iter().filter(|after| **after <= seconds).count()
}
