//! A workload through the client library, for machines without FUSE. The client is the same; only
//! the kernel's side is simulated.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use curt_bench::child::UserIds;
use curt_bench::library;
use curt_bench::processes::{Testbed, progress_bar};
use curt_bench::report::RunReport;
use curt_bench::trace::TraceOperation;
use curt_client::Caller;
use curt_client::threads::MonotonicClock;
use curt_mount::daemon::{MountSpec, UnmountedClient};
use curt_mount::options::{self, MountSource};
use curt_observe::control::MountReport;

use super::workload::{WorkloadResult, WorkloadRun, title};

/// Runs it with the credential of the user `nobody`, because servers treat root specially.
pub(crate) fn replay(run: &WorkloadRun<'_>, world: &Testbed) -> Result<WorkloadResult> {
    let plan = MountSpec {
        source: MountSource::parse(world.source()).with_context(|| world.source().to_owned())?,
        target: PathBuf::new(),
        settings: options::parse(&world.options(run.vers, run.options))?.settings,
        table: false,
        namespace: None,
    };
    let connected = UnmountedClient::connect(&plan).map_err(|failure| anyhow!("{failure}"))?;
    let (tree, trace) = (run.workload.tree(), run.workload.trace());
    let bar = progress_bar(&format!("{} with {}, without a mount", run.workload, title(run.options)));
    bar.set_length(trace.operations_count());
    let caller = Caller::new(UserIds::NOBODY.uid, UserIds::NOBODY.gid, &[]);
    let mut pages = 0;
    let outcome =
        library::replay(connected.client(), &caller, &MonotonicClock, &trace, &tree, &mut |operation| {
            bar.inc(operation.operations());
            if matches!(operation, TraceOperation::Page) {
                if pages > 0 {
                    std::thread::sleep(run.pause);
                }
                pages += 1;
            }
        });
    bar.finish_and_clear();
    let counters = connected.client().counters();
    let report = RunReport {
        workload: run.workload.name().to_owned(),
        vers: run.vers.to_owned(),
        options: run.options.to_owned(),
        server: world.source().to_owned(),
        operations: outcome.operations,
        wrong: outcome.wrong,
        seconds: outcome.seconds,
        rpc: counters.requests.clone(),
    };
    Ok(WorkloadResult { outcome, report, mount: MountReport { counters, ..MountReport::default() } })
}
