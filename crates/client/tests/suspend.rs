//! A suspend of the machine. The process enters a time namespace in which `CLOCK_BOOTTIME` has
//! advanced, as after a suspend, and `CLOCK_MONOTONIC` has not. That takes root with CAP_SYS_ADMIN;
//! other users are told that nothing was tried.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use curt_client::{
    protocol::{HeldDelegation, LeaseEnd},
    threads::{Clock, MonotonicClock},
};
use curt_policy::MonotonicTime;
use rustix::{
    process::geteuid,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

const SUSPENDED: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(90);

fn main() {
    if !geteuid().is_root() {
        println!("not tried: only root enters a time namespace");
        return;
    }
    no_delegation_is_valid_after_a_suspend_that_is_longer_than_the_lease();
}

fn no_delegation_is_valid_after_a_suspend_that_is_longer_than_the_lease() {
    let (begun, origin) = (Instant::now(), MonotonicClock.now());
    let now = || MonotonicTime::from_start(MonotonicClock.now() - origin);
    let lease = Arc::<LeaseEnd>::default();
    lease.begin(origin);
    lease.extend(origin + LEASE);
    let held = HeldDelegation::new(&lease);
    assert!(held.is_valid(now()));
    // The longer this thread waits for a processor in a reading, the wider its bounds are. So the
    // best one counts.
    let readings = || (0..100).map(|_| MonotonicClock.suspended());
    let before = readings().map(|reading| reading.at_most).min().unwrap();
    suspend();
    let suspended = readings().map(|reading| reading.at_least).max().unwrap() - before;
    assert!(suspended.abs_diff(SUSPENDED) < Duration::from_secs(1), "{suspended:?}");
    assert!(begun.elapsed() < LEASE, "a timer does not notice the suspend");
    assert!(!held.is_valid(now()));
    assert!(now() >= MonotonicTime::from_start(SUSPENDED));
    lease.extend(MonotonicClock.now() + LEASE);
    assert!(held.is_valid(now()), "the lease was renewed");
}

fn suspend() {
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime", &SUSPENDED.as_secs().to_string(), "cat"]);
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
    // It is in its namespace when it answers.
    input.write_all(b"ready\n").unwrap();
    BufReader::new(output).read_line(&mut String::new()).unwrap();
    let namespace = File::open(format!("/proc/{}/ns/time_for_children", other.id())).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Time)).unwrap();
    drop(input);
    assert!(other.wait().unwrap().success());
}
