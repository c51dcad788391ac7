//! What daemons tell at one moment, and a thread that asks them again and again.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use curt_trace::control::{self, ControlError, MountActivity, WatchMount};

use crate::errors;
use crate::serve::control::{ServerReport, ServerSelector, find};

/// Whom to ask.
#[derive(Clone, Debug)]
pub(super) enum SampleSource {
    /// All mounts, or the one at this place.
    Mounts(Option<PathBuf>),
    Server(ServerSelector),
}

/// What was told.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) data: SampleData,
}

/// By whom.
#[derive(Clone, Debug)]
pub(super) enum SampleData {
    Mounts(Vec<MountActivity>),
    Server(Box<ServerReport>),
    /// Nobody, and why.
    Nobody(String),
}

impl SampleSource {
    /// Asks once.
    pub(super) fn sample(&self) -> Result<Sample> {
        let told = match self {
            Self::Server(which) => SampleData::Server(find(which)?.1),
            Self::Mounts(Some(mount)) => {
                let (socket, _) = control::find(&control::directory(), mount)?;
                SampleData::Mounts(vec![*control::call(&socket, &WatchMount {})?])
            }
            Self::Mounts(None) => SampleData::Mounts(all()?),
        };
        Ok(Sample {
            at: Instant::now(),
            data: told,
        })
    }
}

fn all() -> Result<Vec<MountActivity>, ControlError> {
    let mounts = control::list(&control::directory())?.into_iter();
    let watched = mounts.map(|(socket, report)| {
        // Who goes while he is asked, or does not tell who causes his requests, is shown as he was.
        let watched = control::call(&socket, &WatchMount {}).map(|watched| *watched);
        watched.unwrap_or_else(|_| MountActivity {
            report,
            ..MountActivity::default()
        })
    });
    Ok(watched.collect())
}

/// A thread that looks, so that a daemon that does not answer keeps no key waiting. It ends with
/// this value.
pub(super) struct Sampler(Receiver<Sample>);

impl Sampler {
    /// Looks every `interval`.
    pub(super) fn start(subject: SampleSource, interval: Duration) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(1);
        thread::Builder::new()
            .name("looking".to_owned())
            .spawn(move || look_on(&subject, interval, &sender))?;
        Ok(Self(receiver))
    }

    /// The next look, if there is one.
    pub(super) fn next(&self) -> Option<Sample> {
        self.0.try_recv().ok()
    }
}

fn look_on(subject: &SampleSource, interval: Duration, sender: &SyncSender<Sample>) {
    loop {
        thread::sleep(interval);
        let look = subject.sample().unwrap_or_else(|error| Sample {
            at: Instant::now(),
            data: SampleData::Nobody(errors::line(&error)),
        });
        if let Err(TrySendError::Disconnected(_)) = sender.try_send(look) {
            return;
        }
    }
}
