//! Explaining a command's requests: the cause of each, the rule that saved each one not sent, and
//! what Linux would have sent.
//!
//! Owns one command's explanation. Must not know who passes operations on: a mount does
//! (`mount/explain`).

mod explanation;
mod paths;
pub(crate) mod process_tree;
mod report;
mod tally;

pub use explanation::CommandExplanation;
pub use report::{CauseRow, ExplainReport, PathRow, ProcessRow, RequestTally, UnlistedRequests};
