//! Signals of a server.

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

/// The exit status after a second signal.
const ENDED_AT_ONCE: i32 = 1;

/// Time for completing calls and syncing before a service manager may kill this process.
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

/// The action of SIGHUP: reads the configuration again, and returns a summary of the exports in one
/// line.
pub(super) type Reload = Box<dyn FnMut() -> String + Send>;

/// The first SIGTERM or SIGINT stops the server in order, the second ends the process, and SIGHUP
/// calls `reload`.
///
/// Called before privileges are dropped for serving: its threads keep those that opening exports
/// needs. Returns a flag that shows whether the server was stopped.
pub(super) fn watch(server: RpcServerHandle, reload: Reload) -> io::Result<Arc<AtomicBool>> {
    // A write beyond a file size limit is an error of that write and must not end the server. The
    // flag is not used: the handler prevents the default action.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let stops = Arc::new(AtomicBool::new(false));
    let is_stopping = Arc::clone(&stops);
    let ask_for_reload = reloader(reload, Arc::clone(&stops))?;
    let listen = move || {
        for signal in signals.forever() {
            // Relaxed, here and where it is read: it orders nothing.
            match (signal, is_stopping.load(Ordering::Relaxed)) {
                // A pending reload covers this one.
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

/// Starts the thread that reloads. It is separate, because an exported directory or a name service
/// that does not respond can block it without limit, and signals that end the server must still be
/// handled.
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
        assert!(beginnings.recv_timeout(Duration::from_millis(100)).is_err(), "there is no third");
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
        // The thread ends, and drops its sender.
        assert!(beginnings.recv_timeout(SOON) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
