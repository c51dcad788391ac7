//! The request that this thread measures.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use curt_proto::Operation;

#[cfg(test)]
use super::graph::CallGraph;
use super::graph::GraphRecorder;
use super::{RequestStage, StageTimes};

thread_local! {
    /// Whether a request is measured and its clock runs. Separate from the rest, so that a check is
    /// cheap.
    static MEASURED: Cell<bool> = const { Cell::new(false) };
    static RUNNING: RefCell<Option<MeasuredRequest>> = const { RefCell::new(None) };
    /// Number of requests since measuring was enabled.
    static COME: Cell<u32> = const { Cell::new(0) };
}

/// Whether this request is the one of `every` that is measured.
#[cold]
pub(super) fn is_next(every: u32) -> bool {
    let come = COME.get().wrapping_add(1);
    COME.set(come);
    come.is_multiple_of(every)
}

/// The measured request.
pub(super) struct MeasuredRequest {
    operation: Option<Operation>,
    stage: RequestStage,
    since: Instant,
    /// Nanoseconds in each stage.
    spent: [u64; RequestStage::ALL.len()],
    entered: [bool; RequestStage::ALL.len()],
    recording: Option<GraphRecorder>,
}

impl MeasuredRequest {
    /// Adds the elapsed time to the current stage.
    fn charge(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_nanos();
        self.spent[self.stage.index()] += u64::try_from(passed).unwrap_or(u64::MAX);
        self.since = now;
    }

    fn change(&mut self, stage: RequestStage, now: Instant) {
        self.charge(now);
        self.stage = stage;
        self.entered[stage.index()] = true;
    }

    /// The stages of the request, with their nanoseconds.
    pub(super) fn stages(&self) -> impl Iterator<Item = (RequestStage, u64)> {
        let all = RequestStage::ALL.into_iter().zip(self.spent).zip(self.entered);
        all.filter_map(|(stage, entered)| entered.then_some(stage))
    }
}

/// Whether this thread measures a request now.
#[inline]
#[must_use]
pub fn is_measured() -> bool {
    MEASURED.get()
}

/// Begins to measure a request, whose bytes are available and are received now. An unfinished one
/// is dropped.
pub fn begin(times: &StageTimes) {
    let mut entered = [false; RequestStage::ALL.len()];
    entered[RequestStage::Receive.index()] = true;
    let now = Instant::now();
    let recording = times.wants_graph().then(|| GraphRecorder::new(now));
    let running = MeasuredRequest {
        operation: None,
        stage: RequestStage::Receive,
        since: now,
        spent: [0; RequestStage::ALL.len()],
        entered,
        recording,
    };
    RUNNING.replace(Some(running));
    MEASURED.set(true);
}

/// Drops the measurement: no request was received, or the client closed the connection.
#[inline]
pub fn forget() {
    if MEASURED.replace(false) {
        RUNNING.take();
    }
}

/// Continues the request in this stage.
#[inline]
pub fn proceed(stage: RequestStage) {
    if is_measured() {
        with_running(|running| {
            let now = Instant::now();
            running.change(stage, now);
            if let Some(recording) = &mut running.recording {
                recording.proceed(stage.name(), now);
            }
        });
    }
}

/// Enters a stage until the returned value is dropped, then returns to the previous one. `name` is
/// the name in a graph.
#[inline]
#[must_use]
pub fn enter(stage: RequestStage, name: &'static str) -> StageGuard {
    StageGuard { before: is_measured().then(|| switch_stage(stage, name)).flatten() }
}

#[cold]
fn switch_stage(stage: RequestStage, name: &'static str) -> Option<RequestStage> {
    with_running(|running| {
        let (now, before) = (Instant::now(), running.stage);
        running.change(stage, now);
        if let Some(recording) = &mut running.recording {
            recording.enter(name, now);
        }
        before
    })
}

/// A nested stage; it ends when this is dropped.
#[derive(Debug)]
pub struct StageGuard {
    before: Option<RequestStage>,
}

impl Drop for StageGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before
            && is_measured()
        {
            with_running(|running| {
                let now = Instant::now();
                running.change(before, now);
                if let Some(recording) = &mut running.recording {
                    recording.leave(now);
                }
            });
        }
    }
}

/// Sets the operation of the request. A request without one is not recorded.
#[inline]
pub fn set_operation(operation: Operation) {
    if is_measured() {
        with_running(|running| running.operation = Some(operation));
    }
}

/// Stops the clock until [`finish`] with [`RequestStage::Send`]: the reply waits for others that
/// are sent together.
#[inline]
pub fn suspend() {
    if MEASURED.replace(false) {
        with_running(|running| running.charge(Instant::now()));
    }
}

/// Runs `send`, which sends the reply to the measured request, if any; then the request is
/// complete.
#[inline]
pub fn finish<T>(times: &StageTimes, send: impl FnOnce() -> T) -> T {
    if RUNNING.with_borrow(Option::is_none) {
        return send();
    }
    with_running(|running| {
        let now = Instant::now();
        if !is_measured() {
            running.since = now;
        }
        running.change(RequestStage::Send, now);
        if let Some(recording) = &mut running.recording {
            recording.proceed(RequestStage::Send.name(), now);
        }
    });
    let sent = send();
    MEASURED.set(false);
    if let Some(mut running) = RUNNING.take() {
        let now = Instant::now();
        running.charge(now);
        if let Some(operation) = running.operation {
            times.record(operation, &running);
            if let Some(recording) = running.recording.take() {
                times.offer(operation, || recording.end(now));
            }
        }
    }
    sent
}

fn with_running<T>(work: impl FnOnce(&mut MeasuredRequest) -> T) -> Option<T> {
    RUNNING.with_borrow_mut(|running| running.as_mut().map(work))
}

/// For tests of formatters: a graph of one request with fixed times.
#[cfg(test)]
pub(super) fn graph_of(work: impl FnOnce()) -> CallGraph {
    let recording = GraphRecorder::new(Instant::now());
    RUNNING.replace(Some(MeasuredRequest {
        operation: None,
        stage: RequestStage::Receive,
        since: Instant::now(),
        spent: [0; RequestStage::ALL.len()],
        entered: [false; RequestStage::ALL.len()],
        recording: Some(recording),
    }));
    MEASURED.set(true);
    work();
    MEASURED.set(false);
    let recording = RUNNING.take().and_then(|running| running.recording);
    recording.map(|recording| recording.end(Instant::now())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    fn spend(microseconds: u64) {
        let end = Instant::now() + std::time::Duration::from_micros(microseconds);
        while Instant::now() < end {}
    }

    #[test]
    fn stages_add_up_to_all_of_the_time() {
        let times = StageTimes::default();
        times.set_every(1);
        let start = Instant::now();
        begin(&times);
        spend(20);
        proceed(RequestStage::Decode);
        set_operation(Operation::Nfs3(NfsProcedure::Write));
        {
            let _handle = enter(RequestStage::Handle, "verify");
            spend(20);
            let _export = enter(RequestStage::Export, "decide");
            spend(30);
        }
        proceed(RequestStage::Encode);
        let stages = RUNNING.with_borrow(|running| {
            let running = running.as_ref().expect("it is measured");
            running.stages().collect::<Vec<_>>()
        });
        let spent = |stage| stages.iter().find(|(is, _)| *is == stage).map_or(0, |(_, spent)| *spent);
        assert!(spent(RequestStage::Receive) >= 20_000 && spent(RequestStage::Handle) >= 20_000);
        assert!(spent(RequestStage::Export) >= 30_000, "what is inside another counts once");
        assert!(!stages.iter().any(|(stage, _)| *stage == RequestStage::Open), "it was not entered");
        finish(&times, || spend(10));
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let report = times.report();
        let write = &report.operations[&Operation::Nfs3(NfsProcedure::Write)];
        assert_eq!((write.count, report.every), (1, 1));
        assert!(write.total.p50_us >= 80.0 && write.total.p50_us <= took as f64 / 1000.0 * 1.01);
        let sum: f64 = write.stages.values().map(|stage| stage.p50_us).sum();
        assert!((sum / write.total.p50_us - 1.0).abs() < 0.05, "{report:?}");
    }

    #[test]
    fn time_while_suspended_belongs_to_no_stage() {
        let times = StageTimes::default();
        let start = Instant::now();
        begin(&times);
        set_operation(Operation::Nfs3(NfsProcedure::Getattr));
        suspend();
        assert!(!is_measured());
        spend(5000);
        finish(&times, || ());
        let took = start.elapsed().as_secs_f64() * 1e6;
        let report = times.report();
        // However long this thread was not scheduled besides.
        let most = (took - 5000.0) * 1.01;
        assert!(
            report.operations[&Operation::Nfs3(NfsProcedure::Getattr)].total.p50_us <= most,
            "{took} µs: {report:?}"
        );
    }

    #[test]
    fn a_request_is_not_taken_for_one_that_never_came() {
        let times = StageTimes::default();
        begin(&times);
        forget();
        // The next one on this thread is not measured.
        set_operation(Operation::Nfs3(NfsProcedure::Getattr));
        finish(&times, || ());
        assert!(times.report().operations.is_empty());
    }

    #[test]
    fn unmeasured_and_unnamed_stages_are_not_recorded() {
        let times = StageTimes::default();
        proceed(RequestStage::Decode);
        drop(enter(RequestStage::Open, "open"));
        assert_eq!(finish(&times, || 5), 5);
        begin(&times);
        finish(&times, || ());
        assert!(times.report().operations.is_empty());
    }
}
