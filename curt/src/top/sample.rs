//! Samples of daemons, and a thread that gets them periodically.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use curt_observe::control::{self, ControlError, MountActivity, WatchMount};

use crate::errors;
use crate::serve::control::{ServerReport, ServerSelector, find};

/// The source of samples.
#[derive(Clone, Debug)]
pub(super) enum SampleSource {
    /// All mounts, or the one at this directory.
    Mounts(Option<PathBuf>),
    Server(ServerSelector),
}

/// A sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) data: SampleData,
}

/// Its data.
#[derive(Clone, Debug)]
pub(super) enum SampleData {
    Mounts(Vec<MountActivity>),
    Server(Box<ServerReport>),
    /// No data, and why.
    Nobody(String),
}

impl SampleSource {
    /// Gets a sample.
    pub(super) fn sample(&self) -> Result<Sample> {
        let result = match self {
            Self::Server(which) => SampleData::Server(find(which)?.1),
            Self::Mounts(Some(mount)) => {
                let (socket, _) = control::find(&control::directory(), mount)?;
                SampleData::Mounts(vec![*control::call(&socket, &WatchMount {})?])
            }
            Self::Mounts(None) => SampleData::Mounts(all()?),
        };
        Ok(Sample { at: Instant::now(), data: result })
    }
}

fn all() -> Result<Vec<MountActivity>, ControlError> {
    let mounts = control::list(&control::directory())?.into_iter();
    let watched = mounts.map(|(socket, report)| {
        // A mount that ends meanwhile, or whose causes are not available, is shown with its last
        // values.
        let watched = control::call(&socket, &WatchMount {}).map(|watched| *watched);
        watched.unwrap_or_else(|_| MountActivity { report, ..MountActivity::default() })
    });
    Ok(watched.collect())
}

/// A thread that gets samples, so that keys work while a daemon does not respond. It ends with this
/// value.
pub(super) struct Sampler(Receiver<Sample>);

impl Sampler {
    /// Gets a sample in each `interval`.
    pub(super) fn start(source: SampleSource, interval: Duration) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(1);
        thread::Builder::new()
            .name("looking".to_owned())
            .spawn(move || sample_repeatedly(&source, interval, &sender))?;
        Ok(Self(receiver))
    }

    /// The next sample, if there is one.
    pub(super) fn next(&self) -> Option<Sample> {
        self.0.try_recv().ok()
    }
}

fn sample_repeatedly(source: &SampleSource, interval: Duration, sender: &SyncSender<Sample>) {
    loop {
        thread::sleep(interval);
        let sample = source.sample().unwrap_or_else(|error| Sample {
            at: Instant::now(),
            data: SampleData::Nobody(errors::line(&error)),
        });
        if let Err(TrySendError::Disconnected(_)) = sender.try_send(sample) {
            return;
        }
    }
}
