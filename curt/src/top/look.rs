//! What daemons tell at one moment, and a thread that asks them again and again.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use curt_mount::control::{self, AskError, Watched};

use crate::errors;
use crate::serve::control::{ServerReport, Which, find};

/// Whom to ask.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// All mounts, or the one at this place.
    Mounts(Option<PathBuf>),
    Server(Which),
}

/// What was told.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) told: Told,
}

/// By whom.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Mounts(Vec<Watched>),
    Server(Box<ServerReport>),
    /// Nobody, and why.
    Nobody(String),
}

impl Subject {
    /// Asks once.
    pub(super) fn look(&self) -> Result<Look> {
        let told = match self {
            Self::Server(which) => Told::Server(Box::new(find(which)?.1)),
            Self::Mounts(Some(mount)) => {
                let (socket, _) = control::find(&control::directory(), mount)?;
                Told::Mounts(vec![control::watch(&socket)?])
            }
            Self::Mounts(None) => Told::Mounts(all()?),
        };
        Ok(Look {
            at: Instant::now(),
            told,
        })
    }
}

fn all() -> Result<Vec<Watched>, AskError> {
    let mounts = control::list(&control::directory())?.into_iter();
    let watched = mounts.map(|(socket, report)| {
        // Who goes while he is asked, or does not tell who causes his requests, is shown as he was.
        control::watch(&socket).unwrap_or_else(|_| Watched {
            report,
            ..Watched::default()
        })
    });
    Ok(watched.collect())
}

/// A thread that looks, so that a daemon that does not answer keeps no key waiting. It ends with this value.
pub(super) struct Looking(Receiver<Look>);

impl Looking {
    /// Looks every `interval`.
    pub(super) fn start(subject: Subject, interval: Duration) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(1);
        thread::Builder::new()
            .name("looking".to_owned())
            .spawn(move || look_on(&subject, interval, &sender))?;
        Ok(Self(receiver))
    }

    /// The next look, if there is one.
    pub(super) fn next(&self) -> Option<Look> {
        self.0.try_recv().ok()
    }
}

fn look_on(subject: &Subject, interval: Duration, sender: &SyncSender<Look>) {
    loop {
        thread::sleep(interval);
        let look = subject.look().unwrap_or_else(|error| Look {
            at: Instant::now(),
            told: Told::Nobody(errors::line(&error)),
        });
        if let Err(TrySendError::Disconnected(_)) = sender.try_send(look) {
            return;
        }
    }
}
