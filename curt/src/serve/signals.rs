//! What signals do to a server.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use curt_rpc::server::RpcServerHandle;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    iterator::Signals,
};

use super::systemd;

/// The exit status of a server that a second signal ended.
const ENDED_AT_ONCE: i32 = 1;

/// How long finishing and syncing may take before a service manager kills this process.
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

/// What SIGHUP asks for: reads everything again that can change, and says in one line what is
/// served now.
pub(super) type Reload = Box<dyn FnMut() -> String + Send>;

/// Has the first SIGTERM or SIGINT stop the server in order, the second end the process, and SIGHUP
/// do `reload`.
///
/// To be called before rights are given up for serving: its threads keep those that opening exports
/// needs. Returns what tells that the server was told to stop.
pub(super) fn watch(server: RpcServerHandle, reload: Reload) -> io::Result<Arc<AtomicBool>> {
    // A file that grows beyond a limit is an error of that write, not the end of the server. The
    // flag is of no use: a handler is what keeps the signal from killing.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let stops = Arc::new(AtomicBool::new(false));
    let is_stopping = Arc::clone(&stops);
    let ask_for_reload = reloader(reload, Arc::clone(&stops))?;
    let listen = move || {
        for signal in signals.forever() {
            // Relaxed, here and where it is read: it orders nothing.
            match (signal, is_stopping.load(Ordering::Relaxed)) {
                // Where one is asked for already, it finds what this one would find.
                (SIGHUP, false) => drop(ask_for_reload.try_send(())),
                (SIGHUP, true) => {}
                (_, false) => {
                    is_stopping.store(true, Ordering::Relaxed);
                    tracing::info!("stopping: finishing calls in progress; a second signal stops at once");
                    systemd::stopping(FINISHED_WITHIN);
                    server.shutdown();
                }
                (_, true) => {
                    tracing::warn!("stopped at once");
                    std::process::exit(ENDED_AT_ONCE);
                }
            }
        }
    };
    thread::Builder::new().name("curt-signals".into()).spawn(listen)?;
    Ok(stops)
}

/// Starts the thread that reloads when it is asked to. It is one of its own, for an exported
/// directory or a name service that does not answer can hold it up for ever, and the signals that
/// end the server must be heard meanwhile.
fn reloader(mut reload: Reload, stops: Arc<AtomicBool>) -> io::Result<SyncSender<()>> {
    let (ask, asked) = sync_channel(1);
    let run = move || {
        for () in asked {
            if stops.load(Ordering::Relaxed) {
                return;
            }
            systemd::reloading();
            let served = reload();
            if !stops.load(Ordering::Relaxed) {
                systemd::ready(&served);
            }
        }
    };
    thread::Builder::new().name("curt-reload".into()).spawn(run)?;
    Ok(ask)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TrySendError, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_reload_that_hangs_holds_nobody_up_and_is_followed_by_one_more() {
        let (begun, beginnings) = channel();
        let (release, released) = channel();
        let reload = Box::new(move || {
            begun.send(()).expect("the test listens");
            released.recv().expect("the test releases it");
            String::new()
        });
        let ask = reloader(reload, Arc::default()).expect("a thread");
        let ask_again = || ask.try_send(());
        assert_eq!(ask_again(), Ok(()));
        beginnings.recv_timeout(SOON).expect("it is begun");
        assert_eq!(ask_again(), Ok(()), "what changed since it began is read as well");
        assert_eq!(ask_again(), Err(TrySendError::Full(())), "one more is enough");
        release.send(()).expect("it waits");
        beginnings.recv_timeout(SOON).expect("the second is begun");
        release.send(()).expect("it waits");
        assert!(
            beginnings.recv_timeout(Duration::from_millis(100)).is_err(),
            "there is no third"
        );
    }

    #[test]
    fn nothing_is_reloaded_once_the_server_stops() {
        let (begun, beginnings) = channel();
        let reload = Box::new(move || {
            begun.send(()).expect("the test listens");
            String::new()
        });
        let stops = Arc::new(AtomicBool::new(true));
        let ask = reloader(reload, stops).expect("a thread");
        ask.try_send(()).expect("room for one");
        // The thread ends, and with it what it would tell.
        assert!(beginnings.recv_timeout(SOON) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
