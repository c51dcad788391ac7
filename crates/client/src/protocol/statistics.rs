//! Request counts per procedure: what mountstats, nfsiostat and nfsstat print.
//!
//! The figures are the table's in curt-trace; here they have the names that plans know them by.

pub use curt_trace::{CompletedRequest, OperationCounters as Statistics, OperationFigure};
