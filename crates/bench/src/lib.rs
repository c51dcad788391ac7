//! Workloads: trees and traces, their replay, and reports.
