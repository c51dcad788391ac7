//! A connection that breaks after the server has executed a call and before the client has its
//! reply: the call that the client sends again over a new connection must not be executed again,
//! and no program may get an error.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_proto::nfs3::NfsProcedure;
use curt_tests::curt::CurtMount;
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::relay::RelayedServe;

const MINUTES: Duration = Duration::from_secs(400);

/// All procedures that are not idempotent.
const CHOSEN: [NfsProcedure; 9] = [
    NfsProcedure::Setattr,
    NfsProcedure::Create,
    NfsProcedure::Mkdir,
    NfsProcedure::Symlink,
    NfsProcedure::Mknod,
    NfsProcedure::Remove,
    NfsProcedure::Rmdir,
    NfsProcedure::Rename,
    NfsProcedure::Link,
];

/// One call of each, as made by programs; ends at the first failure.
const EACH: &str = "set -e -o noclobber
mkdir made; echo -n text >file; chmod 600 file; ln file linked; ln -s file symbolic; mkfifo pipe
mv linked made/moved; rm symbolic pipe; rmdir --ignore-fail-on-non-empty made; mkdir gone; rmdir gone
[[ $(ls | tr '\\n' ' ') == 'file made ' && $(ls made) == moved && $(cat made/moved) == text ]]
";

/// A server whose first reply to each of these calls is lost.
fn start() -> Result<RelayedServe> {
    RelayedServe::start(&CHOSEN.map(NfsProcedure::number))
}

fn check(served: &RelayedServe) -> Result<()> {
    let cuts = served.relay.cuts();
    ensure!(cuts >= CHOSEN.len(), "only {cuts} replies were lost");
    Ok(())
}

// SEMANTICS: rpc-11.
#[test]
fn our_client_reports_no_error_when_each_reply_is_lost_once() -> Result<()> {
    let served = start()?;
    let mount = CurtMount::start(&served.network, "mount", &served.server.source(), &served.ports())?;
    served.network.shell(&format!("cd {}\n{EACH}", mount.directory().display()), MINUTES)?;
    check(&served)?;
    mount.unmount()
}

// SEMANTICS: rpc-11.
#[test]
fn the_linux_client_reports_no_error_when_each_reply_is_lost_once() -> Result<()> {
    let served = start()?;
    let script = format!(
        "mount -t nfs -o vers=3,nolock,proto=tcp,{} {} /mnt/nfs || exit 1\ncd /mnt/nfs\n{EACH}cd /; umount /mnt/nfs",
        served.ports(),
        served.server.source()
    );
    linux_client(&served.network, KernelNumber(0), MINUTES, &script)?;
    check(&served)
}
