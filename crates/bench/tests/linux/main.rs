//! The recorded workloads through the model of Linux's client, with a scripted clock: within 5 % of
//! a real kernel's counts.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod replay;

use std::time::Duration;

use curt_bench::trace::TraceOperation;
use curt_bench::workload::Workload;
use curt_linux_model::Options;
use curt_observe::CallCounts;
use curt_policy::{CacheOptions, TimeoutRange};

use replay::LinuxReplay;

const REQUEST: Duration = Duration::from_micros(200);
const VIEW_PAUSE: Duration = Duration::from_secs(1);
const OPERATION_PAUSE: Duration = Duration::from_micros(20);
/// The duration on the kernel, which is itself a process: attributes expire meanwhile.
const BUILD_LENGTH: Duration = Duration::from_secs(10);

fn sent(workload: Workload, cache: CacheOptions) -> CallCounts {
    let (tree, trace) = (workload.tree(), workload.trace());
    let options = Options {
        cache,
        read_size: 1 << 20,
        write_size: 1 << 20,
        list_size: 1 << 20,
        handle_size: 32,
        sync: false,
    };
    let mut linux = LinuxReplay::new(&trace, &tree, options, REQUEST);
    let start = Duration::from_secs(1);
    linux.advance_to(start);
    let total = u32::try_from(trace.operations_count()).unwrap();
    let mut done = 0;
    for operation in trace.operations() {
        match workload {
            Workload::Page => match operation {
                TraceOperation::Page if done == 0 => {}
                TraceOperation::Page => linux.advance_to(linux.passed() + VIEW_PAUSE),
                _ => {
                    linux.advance_to(linux.passed() + OPERATION_PAUSE);
                    done += 1;
                }
            },
            Workload::Build => {
                linux.advance_to(start + BUILD_LENGTH * done / total);
                done += u32::try_from(operation.operations()).unwrap();
            }
        }
        linux.perform(operation);
    }
    println!("{workload}: {} s {:?}", linux.passed().as_secs_f64(), linux.requests());
    linux.requests()
}

fn nocto_and_ten_minutes() -> CacheOptions {
    let ten_minutes = TimeoutRange { min: Duration::from_secs(600), max: Duration::from_secs(600) };
    CacheOptions {
        files: ten_minutes,
        directories: ten_minutes,
        close_to_open: false,
        ..CacheOptions::default()
    }
}

/// Within 5 % of the kernel's counts.
#[track_caller]
fn near(sent: &CallCounts, counted: u64) {
    let total = sent.total();
    assert!(total.abs_diff(counted) * 20 <= counted, "{total} for {counted}: {sent:?}");
}

#[test]
fn page_by_default() {
    near(&sent(Workload::Page, CacheOptions::default()), 9_487);
}

#[test]
fn page_with_nocto_and_attributes_of_ten_minutes() {
    near(&sent(Workload::Page, nocto_and_ten_minutes()), 3_930);
}

#[test]
fn build_by_default() {
    near(&sent(Workload::Build, CacheOptions::default()), 24_166);
}

#[test]
fn build_with_nocto_and_attributes_of_ten_minutes() {
    near(&sent(Workload::Build, nocto_and_ten_minutes()), 4_387);
}
