//! INTERRUPT: ends the waits of requests whose callers got a signal.
//!
//! INTERRUPT names a request; a wait for a lock then ends at once, any other only if its caller is
//! being killed. The kernel sends no second INTERRUPT when a fatal signal follows another signal.
//! So one thread checks such callers every 100 ms; it exists only while there are some. To register
//! a request for these checks costs a flag: most requests are complete before the first check.
//!
//! Invariant: an INTERRUPT that is read before its request is registered is not lost: its reader
//! stores it before it searches, the reader of the request registers before it searches the stored
//! ones, and both lock the mutex of the `InFlightRequest`.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use crate::{
    caller_state,
    requests_in_progress::{InFlightRequest, InFlightRequestState, InFlightRequests, STACK_BYTES},
};

/// The server counts as silent after this time without a reply.
const SERVER_SILENCE: Duration = Duration::from_secs(1);
/// Interval of the checks of callers.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of stored INTERRUPTs of unknown requests. Most belong to requests that were
/// completed meanwhile.
const EARLY_MAX: usize = 1024;
/// Number of checks without a caller after which the checking thread ends.
const IDLE_CHECKS_MAX: u32 = 20;

impl InFlightRequests {
    /// The caller of request `unique` got a signal.
    pub(crate) fn interrupt(self: &Arc<Self>, unique: u64) {
        self.store_early_interrupt(unique);
        let flight = self.all.lock().values().find(|flight| flight.state.lock().unique == unique).cloned();
        if let Some(flight) = flight {
            self.take_early_interrupt(unique);
            self.interrupt_flight(&flight, unique);
        }
    }

    /// Interrupts a request that was just registered if its INTERRUPT was read before.
    pub(crate) fn apply_early_interrupt(self: &Arc<Self>, flight: &Arc<InFlightRequest>, unique: u64) {
        if self.take_early_interrupt(unique) {
            self.interrupt_flight(flight, unique);
        }
    }

    /// Stores the INTERRUPT of a request; the oldest one is discarded if there are too many.
    fn store_early_interrupt(&self, unique: u64) {
        let mut early = self.early.lock();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        self.early_count.store(early.len(), Ordering::SeqCst);
    }

    /// Removes the INTERRUPT of a request; returns whether it was stored.
    fn take_early_interrupt(&self, unique: u64) -> bool {
        let mut early = self.early.lock();
        let index = early.iter().position(|&other| other == unique);
        if let Some(index) = index {
            early.remove(index);
            self.early_count.store(early.len(), Ordering::SeqCst);
        }
        index.is_some()
    }

    /// Ends the wait of all requests in progress.
    pub(crate) fn interrupt_all(&self) {
        for flight in self.all.lock().values() {
            flight.state.lock().interruption.raise();
        }
    }

    fn interrupt_flight(self: &Arc<Self>, flight: &Arc<InFlightRequest>, unique: u64) {
        let tid = {
            let mut now = flight.state.lock();
            if now.unique != unique {
                return;
            }
            if now.waits_for_lock {
                now.interruption.raise();
                return;
            }
            now.interrupted = true;
            now.tid
        };
        if caller_state::is_being_killed(tid) {
            flight.raise(unique);
        } else {
            self.start_caller_checks();
        }
    }

    /// Has each request with a flag checked until it is complete.
    pub(crate) fn start_caller_checks(self: &Arc<Self>) {
        if self.is_checking.swap(true, Ordering::SeqCst) {
            return;
        }
        let flights = self.clone();
        let spawned = thread::Builder::new()
            .name("fuse-watch".into())
            .stack_size(STACK_BYTES)
            .spawn(move || flights.run_caller_checks());
        if let Err(error) = spawned {
            self.is_checking.store(false, Ordering::SeqCst);
            tracing::warn!("cannot start the thread that detects killed callers: {error}");
        }
    }

    fn run_caller_checks(&self) {
        let mut idle_checks = 0;
        loop {
            thread::sleep(CHECK_INTERVAL);
            idle_checks = if self.check_callers() { 0 } else { idle_checks + 1 };
            if idle_checks < IDLE_CHECKS_MAX {
                continue;
            }
            self.is_checking.store(false, Ordering::SeqCst);
            if !self.check_callers() || self.is_checking.swap(true, Ordering::SeqCst) {
                return;
            }
            idle_checks = 0;
        }
    }

    /// Checks each request with a flag; returns whether any are left.
    fn check_callers(&self) -> bool {
        let flagged: Vec<_> = self
            .all
            .lock()
            .values()
            .filter_map(|flight| Some((flight.caller_check()?, flight.clone())))
            .collect();
        if flagged.is_empty() {
            return false;
        }
        let silent = (self.silent_for)().is_some_and(|silence| silence >= SERVER_SILENCE);
        let mut left = false;
        for (request, flight) in flagged {
            left |= flight.apply_caller_check(&request, silent);
        }
        left
    }
}

/// The conditions to check for a request.
#[derive(Clone, Copy, Debug)]
struct CallerCheck {
    unique: u64,
    tid: u32,
    interrupted: bool,
    on_silence: bool,
    on_exit: bool,
}

impl InFlightRequest {
    fn raise(&self, unique: u64) {
        let now = self.state.lock();
        if now.unique == unique {
            now.interruption.raise();
        }
    }

    /// The current request, if it has a flag and still waits.
    fn caller_check(&self) -> Option<CallerCheck> {
        let now = self.state.lock();
        let InFlightRequestState { unique, tid, interrupted, on_silence, on_exit, .. } = *now;
        let any = interrupted || on_silence || on_exit;
        (unique != 0 && any && !now.interruption.is_raised()).then_some(CallerCheck {
            unique,
            tid,
            interrupted,
            on_silence,
            on_exit,
        })
    }

    /// Ends the wait of a request if there is a reason; returns whether to check it again.
    fn apply_caller_check(&self, request: &CallerCheck, silent: bool) -> bool {
        let ends = silent && request.on_silence
            || request.interrupted && caller_state::is_being_killed(request.tid)
            || silent && request.on_exit && caller_state::is_exiting(request.tid);
        if ends {
            self.raise(request.unique);
        }
        !ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::message_fields::NodeId;
    use crate::request::InHeader;
    use crate::requests_in_progress::{FuseContext, WorkerStages};

    /// A thread that does not exist counts as being killed.
    const DEAD: u32 = u32::MAX;

    fn header(unique: u64, opcode: u32, tid: u32) -> InHeader {
        InHeader { unique, opcode, node: NodeId(1), uid: 0, gid: 0, tid }
    }

    fn flights(silence: Option<Duration>) -> (Arc<InFlightRequests>, Arc<InFlightRequest>) {
        let flights = Arc::new(InFlightRequests::new(move || silence));
        let flight = flights.join();
        (flights, flight)
    }

    // SEMANTICS: lock-8.
    #[test]
    fn a_wait_for_a_lock_ends_with_any_signal_and_others_with_a_fatal_one() {
        let living = std::process::id();
        for (opcode, waits_for_lock, tid, ends) in [
            (opcode::SETLKW, true, living, true),
            (opcode::SETLKW, true, DEAD, true),
            // An unlock.
            (opcode::SETLKW, false, living, false),
            (opcode::SETLKW, false, DEAD, true),
            (opcode::READ, false, DEAD, true),
            (opcode::READ, false, living, false),
            (opcode::SETLK, false, living, false),
            (opcode::GETLK, false, living, false),
            (opcode::GETLK, false, DEAD, true),
        ] {
            let (flights, flight) = flights(None);
            flights.begin(&flight, &header(8, opcode, tid), waits_for_lock);
            flights.interrupt(8);
            assert_eq!(flight.interruption().is_raised(), ends, "{opcode} {tid}");
        }
    }

    #[test]
    fn an_interrupt_that_comes_before_its_request_is_remembered() {
        let (flights, flight) = flights(None);
        flights.interrupt(10);
        flights.begin(&flight, &header(8, opcode::SETLKW, 1), true);
        assert!(!flight.interruption().is_raised(), "it was meant for another");
        flights.end(&flight);
        flights.begin(&flight, &header(10, opcode::SETLKW, 1), true);
        assert!(flight.interruption().is_raised());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (flights, flight) = flights(None);
        for unique in 0..=2 * EARLY_MAX as u64 {
            flights.interrupt(2 * unique + 2);
        }
        assert_eq!(flights.early.lock().len(), EARLY_MAX);
        flights.begin(&flight, &header(2, opcode::SETLKW, 1), true);
        assert!(!flight.interruption().is_raised(), "the oldest was forgotten");
    }

    #[test]
    fn the_next_request_of_a_thread_is_not_interrupted_with_the_last() {
        let (flights, flight) = flights(None);
        flights.begin(&flight, &header(8, opcode::SETLKW, 1), true);
        flights.interrupt(8);
        flights.end(&flight);
        flights.begin(&flight, &header(10, opcode::SETLKW, 1), true);
        flights.interrupt(8);
        assert!(!flight.interruption().is_raised());
    }

    // SEMANTICS: rpc-13.
    #[test]
    fn interrupted_requests_end_on_silence_or_exit_as_marked() {
        let long = Some(SERVER_SILENCE);
        for (silence, on_silence, on_exit, tid, ends) in [
            (long, true, false, std::process::id(), true),
            (long, false, true, DEAD, true),
            (long, false, true, std::process::id(), false),
            (long, false, false, DEAD, false),
            (None, true, true, DEAD, false),
            (Some(SERVER_SILENCE / 2), true, true, DEAD, false),
        ] {
            let (flights, flight) = flights(silence);
            flights.is_checking.store(true, Ordering::SeqCst);
            flights.begin(&flight, &header(8, opcode::FLUSH, tid), false);
            let stages = WorkerStages::default();
            let stage = stages.join();
            let context = FuseContext {
                uid: 0,
                gid: 0,
                tid,
                interruption: &flight.interruption(),
                requests: &flights,
                request: &flight,
                stage: &stage,
                stages: &stages,
            };
            if on_silence {
                context.give_up_on_silence();
            }
            if on_exit {
                context.give_up_on_exit();
            }
            flights.check_callers();
            assert_eq!(flight.interruption().is_raised(), ends, "{silence:?} {on_silence} {on_exit} {tid}");
        }
    }

    #[test]
    fn an_answered_request_is_looked_at_no_more() {
        let (flights, flight) = flights(None);
        flights.is_checking.store(true, Ordering::SeqCst);
        flights.begin(&flight, &header(8, opcode::READ, std::process::id()), false);
        flights.interrupt(8);
        assert!(flights.check_callers());
        flights.end(&flight);
        assert!(!flights.check_callers());
    }
}
