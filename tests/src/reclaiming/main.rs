//! `reclaiming-clients ADDRESS:PORT DIRECTORY open`: two clients of NFSv4.1 open a file each, and
//! leave without closing it.
//!
//! `reclaiming-clients ADDRESS:PORT DIRECTORY COUNT`: after a restart of the server, COUNT of these
//! clients and a new one come. They reclaim what they had open, and then the new one opens a file,
//! again and again until the grace period has ended. It prints how many milliseconds after the last
//! RECLAIM_COMPLETE that was, and whether the first OPEN was refused.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use curt_proto::nfs4::*;
use curt_tests::nfs4_client::{Nfs4Client, go};
use curt_xdr::Opaque;

/// The clients that have files open. Each has one with its name.
const CLIENTS: [&str; 2] = ["first", "second"];
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// OPEN of the file with this name.
fn opening(name: &str) -> Result<OpenArgs4<'_>> {
    Ok(OpenArgs4 {
        seqid: 0,
        share_access: ShareAccess4(ShareAccess4::BOTH | ShareAccess4::WANT_NO_DELEG),
        share_deny: 0,
        owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"owner")? },
        how: OpenHow::Create(CreateHow4::Unchecked(Fattr4::default())),
        claim: OpenClaim::Null(Opaque::new(name.as_bytes())?),
    })
}

/// Executes one operation on the object at a path.
fn at(client: &mut Nfs4Client, path: &[&str], operation: &impl OperationArguments) -> Result<NfsStat4> {
    let (status, _) = client.run(|compound| {
        go(compound, path);
        compound.push(operation);
    })?;
    Ok(status)
}

/// RECLAIM_COMPLETE. A client that has not restarted may have sent it before.
fn complete(client: &mut Nfs4Client) -> Result<()> {
    let status = at(client, &[], &ReclaimCompleteArgs4 { one_file_system: false })?;
    ensure!(matches!(status, NfsStat4::Ok | NfsStat4::CompleteAlready), "RECLAIM_COMPLETE: {status}");
    Ok(())
}

fn open(address: &str, directory: &[&str]) -> Result<()> {
    for name in CLIENTS {
        let client = &mut Nfs4Client::connect(address, name)?;
        complete(client)?;
        let status = at(client, directory, &opening(name)?)?;
        ensure!(status == NfsStat4::Ok, "OPEN: {status}");
    }
    Ok(())
}

fn reclaim(address: &str, directory: &[&str], count: usize) -> Result<()> {
    let new = &mut Nfs4Client::connect(address, "new")?;
    complete(new)?;
    let mut clients = Vec::new();
    for name in &CLIENTS[..count] {
        let mut client = Nfs4Client::connect(address, name)?;
        let path: Vec<&str> = directory.iter().chain([name]).copied().collect();
        let claim = OpenClaim::Previous(DelegationType::None);
        let reclaimed = OpenArgs4 { how: OpenHow::NoCreate, claim, ..opening(name)? };
        let status = at(&mut client, &path, &reclaimed)?;
        ensure!(status == NfsStat4::Ok, "OPEN with CLAIM_PREVIOUS: {status}");
        clients.push(client);
    }
    clients.iter_mut().try_for_each(complete)?;
    let begun = Instant::now();
    let mut refused = 0;
    loop {
        match at(new, directory, &opening("new")?)? {
            NfsStat4::Ok => break,
            NfsStat4::Grace => refused += 1,
            status => bail!("OPEN: {status}"),
        }
        thread::sleep(PAUSE);
    }
    println!("{} {}", begun.elapsed().as_millis(), refused > 0);
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, what] = arguments.as_slice() else {
        bail!("usage: reclaiming-clients ADDRESS:PORT DIRECTORY open|COUNT");
    };
    let directory: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    if what == "open" {
        return open(address, &directory);
    }
    let count = what.parse().ok().filter(|count| *count <= CLIENTS.len());
    reclaim(address, &directory, count.context("a count of clients")?)
}
