//! `denying-client ADDRESS:PORT DIRECTORY`: a client of NFSv4.1 that opens files of a directory as
//! its standard input says, a line each: `open NAME DENIED`, with the number of the access that it
//! denies to others, or `close NAME`. It prints the line and the status.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail, ensure};
use curt_proto::nfs4::*;
use curt_tests::nfs4_client::{Nfs4Client, go};
use curt_xdr::Opaque;

fn open(
    client: &mut Nfs4Client,
    directory: &[&str],
    name: &str,
    denied: u32,
) -> Result<Result<Stateid, NfsStat4>> {
    let open = OpenArgs4 {
        seqid: 0,
        share_access: ShareAccess4(ShareAccess4::READ | ShareAccess4::WANT_NO_DELEG),
        share_deny: denied,
        owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"owner")? },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(Opaque::new(name.as_bytes())?),
    };
    let (status, reply) = client.run(|compound| {
        go(compound, directory);
        compound.push(&open);
    })?;
    if status != NfsStat4::Ok {
        return Ok(Err(status));
    }
    let mut results = CompoundResults::new(&reply)?;
    results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
    results.status(Nfs4Operation::Putrootfh)?;
    for _ in directory {
        results.status(Nfs4Operation::Lookup)?;
    }
    Ok(Ok(results.next::<OpenOk4<'_>>(Nfs4Operation::Open)?.stateid))
}

fn close(client: &mut Nfs4Client, path: &[&str], stateid: Stateid) -> Result<NfsStat4> {
    let (status, _) = client.run(|compound| {
        go(compound, path);
        compound.push(&CloseArgs4 { seqid: 0, stateid });
    })?;
    Ok(status)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path] = arguments.as_slice() else {
        bail!("usage: denying-client ADDRESS:PORT DIRECTORY");
    };
    let directory: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let mut client = Nfs4Client::connect(address, "denies")?;
    let complete = ReclaimCompleteArgs4 { one_file_system: false };
    let (status, _) = client.run(|compound| compound.push(&complete))?;
    ensure!(status == NfsStat4::Ok, "RECLAIM_COMPLETE: {status}");
    let mut opens = HashMap::new();
    for line in std::io::stdin().lines() {
        let line = line?;
        let status = match line.split(' ').collect::<Vec<_>>()[..] {
            ["open", name, denied] => match open(&mut client, &directory, name, denied.parse()?)? {
                Ok(stateid) => {
                    opens.insert(name.to_owned(), stateid);
                    NfsStat4::Ok
                }
                Err(status) => status,
            },
            ["close", name] => {
                let stateid = opens.remove(name).context("the file is not open")?;
                let path: Vec<&str> = directory.iter().copied().chain([name]).collect();
                close(&mut client, &path, stateid)?
            }
            _ => bail!("{line}"),
        };
        println!("{line}: {status}");
    }
    Ok(())
}
