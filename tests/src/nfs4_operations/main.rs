//! `nfs4-operations ADDRESS:PORT DIRECTORY`: calls every operation of NFSv4.1 that the server
//! supports, in the directory with this path, which it leaves empty, and once in vain, and has the
//! server call it back with all that the server has to say.
//!
//! It prints the operations that no compound contained; there should be none.
//!
//! `nfs4-operations ADDRESS:PORT DIRECTORY much`: opens a file almost as often as a client may, and
//! more often once it gets a line, until the server calls it back with CB_RECALL_ANY.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use curt_proto::nfs3;
use curt_proto::nfs4::*;
use curt_tests::nfs4_client::{MINOR, Nfs4Client, go};
use curt_tests::process;
use curt_xdr::{Decoder, Encode, Opaque, VarArray};

const MINUTE: Duration = Duration::from_secs(60);
/// Number of OPENs in a compound.
const OPENS_AT_ONCE: u64 = 56;
/// A client that is alone may have half of the server's 524,288 states. With three quarters of what
/// is left for others it is asked to return some.
const OPENS_BEFORE: u64 = 224_000;
/// Enough to be asked.
const OPENS_MORE: u64 = 1_000;

/// A client, and the operations that it has called.
struct Client {
    nfs: Nfs4Client,
    called: BTreeSet<Nfs4Operation>,
}

impl Client {
    /// Runs one operation on the object at a path, which succeeds or fails with one of `others`.
    fn at<A: OperationArguments>(
        &mut self,
        path: &[&str],
        arguments: &A,
        others: &[NfsStat4],
    ) -> Result<Vec<u8>> {
        self.called.insert(A::OPERATION);
        let (status, reply) = self.nfs.run(|compound| {
            go(compound, path);
            compound.bare(Nfs4Operation::Savefh);
            compound.push(arguments);
        })?;
        ensure!(status == NfsStat4::Ok || others.contains(&status), "{}: {status}", A::OPERATION);
        Ok(reply)
    }

    /// The handle of the object at a path.
    fn handle(&mut self, path: &[&str]) -> Result<Vec<u8>> {
        let (_, reply) = self.nfs.run(|compound| {
            go(compound, path);
            compound.bare(Nfs4Operation::Savefh);
            compound.bare(Nfs4Operation::Getfh);
        })?;
        let handle: GetfhOk4<'_> = results_at(&reply, path)?.next(Nfs4Operation::Getfh)?;
        Ok(handle.object.bytes().to_vec())
    }

    /// The status of a call of NFSv3.
    fn status3(&mut self, procedure: nfs3::NfsProcedure, arguments: &impl Encode) -> Result<u32> {
        let results = self.nfs.call(nfs3::VERSION, procedure.number(), arguments)?;
        Ok(Decoder::new(&results).u32()?)
    }

    /// The result of an operation that [`Self::at`] has run.
    fn result<T: for<'a> curt_xdr::Decode<'a>>(
        reply: &[u8],
        path: &[&str],
        operation: Nfs4Operation,
    ) -> Result<T> {
        Ok(results_at(reply, path)?.next(operation)?)
    }
}

/// The results after SEQUENCE, [`go`] and SAVEFH.
fn results_at<'r>(reply: &'r [u8], path: &[&str]) -> Result<CompoundResults<'r>> {
    let mut results = CompoundResults::new(reply)?;
    results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
    results.status(Nfs4Operation::Putrootfh)?;
    for _ in path {
        results.status(Nfs4Operation::Lookup)?;
    }
    results.status(Nfs4Operation::Savefh)?;
    Ok(results)
}

fn begin(address: &str, owner: &str) -> Result<Client> {
    let nfs = Nfs4Client::connect(address, owner)?;
    let mut client = Client { nfs, called: BTreeSet::new() };
    let bind = BindConnToSessionArgs4 {
        session: client.nfs.session(),
        direction: ChannelDirFromClient::ForeOrBoth,
        rdma: false,
    };
    client.nfs.send(|compound| compound.push(&bind))?;
    use Nfs4Operation as Op;
    client.called.extend([
        Op::ExchangeId,
        Op::CreateSession,
        Op::BindConnToSession,
        Op::Sequence,
        Op::Putrootfh,
        Op::Lookup,
        Op::Savefh,
    ]);
    client.at(&[], &ReclaimCompleteArgs4 { one_file_system: false }, &[])?;
    Ok(client)
}

/// Opens, data, and what ends them.
fn on_files(client: &mut Client, directory: &[&str]) -> Result<()> {
    let path: Vec<&str> = directory.iter().copied().chain(["file"]).collect();
    let open = |access| -> Result<OpenArgs4<'static>> {
        Ok(OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(access),
            share_deny: 0,
            owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"owner")? },
            how: OpenHow::Create(CreateHow4::Unchecked(Fattr4::default())),
            claim: OpenClaim::Null(Opaque::new(b"file")?),
        })
    };
    client.at(directory, &open(ShareAccess4::READ)?, &[])?;
    let reply = client.at(directory, &open(ShareAccess4::BOTH)?, &[])?;
    let stateid: Stateid = Client::result(&reply, directory, Nfs4Operation::Open)?;
    let data = Opaque::new(b"some data")?;
    client.at(&path, &WriteArgs4 { stateid, offset: 0, stable: StableHow4::Unstable, data }, &[])?;
    client.at(&path, &ReadArgs4 { stateid, offset: 0, count: 100 }, &[])?;
    client.at(
        &path,
        &ReadArgs4 { stateid: Stateid::INVALID, offset: 0, count: 100 },
        &[NfsStat4::BadStateid],
    )?;
    client.at(&path, &CommitArgs4 { offset: 0, count: 0 }, &[])?;
    let mut bytes = Vec::new();
    let values = AttributeValues { size: Some(4), mode: Some(0o600), ..AttributeValues::default() };
    values.encode_values(values.present(), &mut bytes);
    let attributes = Fattr4 { mask: values.present(), values: Opaque::new(&bytes)? };
    client.at(&path, &SetattrArgs4 { stateid, attributes }, &[])?;
    client.at(&path, &VerifyArgs4 { attributes }, &[])?;
    client.at(&path, &NverifyArgs4 { attributes }, &[NfsStat4::Same])?;
    client.at(
        &path,
        &GetattrArgs4 { attributes: Attribute::supported(MINOR).common(Attribute::READABLE) },
        &[],
    )?;
    client.at(&path, &AccessArgs4 { access: 0x3f }, &[])?;
    let owner = |name: &'static [u8]| -> Result<_> {
        Ok(StateOwner { clientid: Clientid(0), owner: Opaque::new(name)? })
    };
    let lock = LockArgs4 {
        kind: LockType4::Write,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: Locker::New { open_seqid: 0, open_stateid: stateid, seqid: 0, owner: owner(b"locks")? },
    };
    let reply = client.at(&path, &lock, &[])?;
    let locked = Client::result(&reply, &path, Nfs4Operation::Lock)?;
    let other = LocktArgs4 { kind: LockType4::Read, offset: 0, length: 1, owner: owner(b"other")? };
    client.at(&path, &other, &[NfsStat4::Denied])?;
    let unlock =
        LockuArgs4 { kind: LockType4::Write, seqid: 0, stateid: locked, offset: 0, length: u64::MAX };
    client.at(&path, &unlock, &[])?;
    client.at(&path, &TestStateidArgs4 { stateids: VarArray::new(vec![stateid, Stateid::INVALID])? }, &[])?;
    client.at(&path, &FreeStateidArgs4 { stateid }, &[NfsStat4::LocksHeld])?;
    client.at(&path, &DelegreturnArgs4 { stateid }, &[NfsStat4::BadStateid, NfsStat4::OldStateid])?;
    let downgrade = OpenDowngradeArgs4 {
        stateid,
        seqid: 0,
        share_access: ShareAccess4(ShareAccess4::READ),
        share_deny: 0,
    };
    let reply = client.at(&path, &downgrade, &[])?;
    let stateid = Client::result(&reply, &path, Nfs4Operation::OpenDowngrade)?;
    client.at(&path, &CloseArgs4 { seqid: 0, stateid }, &[])?;
    Ok(())
}

/// I/O of NFSv3 that an open denies has to wait, and none other.
fn on_denials(client: &mut Client, directory: &[&str]) -> Result<()> {
    let path: Vec<&str> = directory.iter().copied().chain(["denied"]).collect();
    for (deny, reads, writes) in [(0, true, true), (1, false, true), (2, true, false), (3, false, false)] {
        let open = OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(ShareAccess4::READ | ShareAccess4::WANT_NO_DELEG),
            share_deny: deny,
            owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"denying")? },
            how: OpenHow::Create(CreateHow4::Unchecked(Fattr4::default())),
            claim: OpenClaim::Null(Opaque::new(b"denied")?),
        };
        let reply = client.at(directory, &open, &[])?;
        // The result of OPEN begins with it.
        let stateid: Stateid = Client::result(&reply, directory, Nfs4Operation::Open)?;
        let file = nfs3::NfsFh3::new(&client.handle(&path)?)?;
        let of_read =
            client.status3(nfs3::NfsProcedure::Read, &nfs3::ReadArguments { file, offset: 0, count: 4 })?;
        let (data, stable) = (Opaque::new(b"data")?, nfs3::StableHow::Unstable);
        let write = nfs3::WriteArguments { file, offset: 0, count: 4, stable, data };
        let of_write = client.status3(nfs3::NfsProcedure::Write, &write)?;
        let expected =
            [reads, writes].map(|allowed| if allowed { 0 } else { nfs3::NfsStat3::Jukebox.number() });
        ensure!([of_read, of_write] == expected, "READ {of_read}, WRITE {of_write}, denied: {deny}");
        client.at(&path, &CloseArgs4 { seqid: 0, stateid }, &[])?;
    }
    Ok(())
}

/// OPEN of an existing file.
fn opening<'a>(name: &'a str, access: u32, owner: &'a [u8]) -> Result<OpenArgs4<'a>> {
    Ok(OpenArgs4 {
        seqid: 0,
        share_access: ShareAccess4(access),
        share_deny: 0,
        owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(owner)? },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(Opaque::new(name.as_bytes())?),
    })
}

/// CB_RECALL, because another client opens a file for writing, and CB_NOTIFY_LOCK, because the
/// other gives up a lock.
fn on_callbacks(client: &mut Client, address: &str, directory: &[&str]) -> Result<()> {
    let path: Vec<&str> = directory.iter().copied().chain(["denied"]).collect();
    let mut other = begin(address, "other")?;
    let reads = opening("denied", ShareAccess4::READ, b"reader")?;
    // The server has the file open for writing for half a second more.
    let (reading, stateid) = process::until("the file is delegated", MINUTE, || {
        let reply = client.at(directory, &reads, &[])?;
        let opened: OpenOk4<'_> = results_at(&reply, directory)?.next(Nfs4Operation::Open)?;
        if let OpenDelegation::Read { stateid, .. } = opened.delegation {
            return Ok(Some((opened.stateid, stateid)));
        }
        client.at(&path, &CloseArgs4 { seqid: 0, stateid: opened.stateid }, &[])?;
        Ok(None)
    })?;
    let writes = opening("denied", ShareAccess4::BOTH, b"writer")?;
    other.at(directory, &writes, &[NfsStat4::Delay])?;
    client.nfs.wait_for(CallbackOperation::Recall)?;
    client.at(&path, &DelegreturnArgs4 { stateid }, &[])?;
    let reply = other.at(directory, &writes, &[])?;
    let writing: Stateid = Client::result(&reply, directory, Nfs4Operation::Open)?;
    let lock = |kind, open_stateid| -> Result<LockArgs4<'static>> {
        let owner = StateOwner { clientid: Clientid(0), owner: Opaque::new(b"waits")? };
        let locker = Locker::New { open_seqid: 0, open_stateid, seqid: 0, owner };
        Ok(LockArgs4 { kind, reclaim: false, offset: 0, length: u64::MAX, locker })
    };
    let reply = other.at(&path, &lock(LockType4::Write, writing)?, &[])?;
    let locked = Client::result(&reply, &path, Nfs4Operation::Lock)?;
    let waits = lock(LockType4::ReadWait, reading)?;
    client.at(&path, &waits, &[NfsStat4::Denied])?;
    let unlock =
        LockuArgs4 { kind: LockType4::Write, seqid: 0, stateid: locked, offset: 0, length: u64::MAX };
    other.at(&path, &unlock, &[])?;
    client.nfs.wait_for(CallbackOperation::NotifyLock)?;
    client.at(&path, &waits, &[])?;
    client.at(&path, &CloseArgs4 { seqid: 0, stateid: reading }, &[])?;
    other.at(&path, &CloseArgs4 { seqid: 0, stateid: writing }, &[])?;
    let session = other.nfs.session();
    other.nfs.send(|compound| compound.push(&DestroySessionArgs4 { session }))?;
    Ok(())
}

/// Opens a file by many owners until the server asks for some of the state.
fn open_much(client: &mut Client, directory: &[&str]) -> Result<()> {
    let mut owner = 0_u64;
    let mut open = |count: u64| -> Result<()> {
        let until = owner + count;
        while owner < until {
            let owners: Vec<_> = (owner..owner + OPENS_AT_ONCE).map(u64::to_be_bytes).collect();
            owner += OPENS_AT_ONCE;
            let opens = owners.iter().map(|owner| {
                let open = opening("", ShareAccess4::READ | ShareAccess4::WANT_NO_DELEG, owner)?;
                Ok(OpenArgs4 { claim: OpenClaim::Fh, ..open })
            });
            let opens: Vec<_> = opens.collect::<Result<_>>()?;
            let (status, _) = client.nfs.run(|compound| {
                go(compound, directory);
                compound.push(&LookupArgs4 { name: Opaque::new(b"file").expect("a short name") });
                opens.iter().for_each(|open| compound.push(open));
            })?;
            ensure!(status == NfsStat4::Ok, "OPEN: {status}");
        }
        Ok(())
    };
    open(OPENS_BEFORE)?;
    println!("has opened");
    std::io::stdin().read_line(&mut String::new())?;
    open(OPENS_MORE)?;
    client.nfs.wait_for(CallbackOperation::RecallAny)?;
    println!("was asked");
    Ok(())
}

/// Names, links, listings, and flavors.
fn on_names(client: &mut Client, directory: &[&str]) -> Result<()> {
    let name = |text: &'static str| Opaque::new(text.as_bytes()).expect("a short name");
    let create = |kind, new| CreateArgs4 { kind, name: name(new), attributes: Fattr4::default() };
    client.at(directory, &create(CreateType4::Directory, "made"), &[])?;
    client.at(directory, &create(CreateType4::Directory, "made"), &[NfsStat4::Exist])?;
    client.at(directory, &create(CreateType4::Symlink(Opaque::new(b"target")?), "link"), &[])?;
    client.at(directory, &RenameArgs4 { from: name("made"), to: name("moved") }, &[])?;
    let listing = ReaddirArgs4 {
        cookie: 0,
        verifier: Verifier4::default(),
        directory_count: 8192,
        max_count: 8192,
        attributes: Attribute::supported(MINOR).common(Attribute::READABLE),
    };
    client.at(directory, &listing, &[])?;
    client.at(&[], &listing, &[])?;
    client.at(directory, &SecinfoArgs4 { name: name("moved") }, &[])?;
    client.at(directory, &SecinfoNoNameArgs4::Current, &[])?;
    let delegation = GetDirDelegationArgs4 {
        signal_when_available: false,
        notification_types: Bitmap4::EMPTY,
        child_attribute_delay: NfsTime4::default(),
        directory_attribute_delay: NfsTime4::default(),
        child_attributes: Bitmap4::EMPTY,
        directory_attributes: Bitmap4::EMPTY,
    };
    client.at(directory, &delegation, &[])?;
    client.called.extend([
        Nfs4Operation::Putfh,
        Nfs4Operation::Getfh,
        Nfs4Operation::Putpubfh,
        Nfs4Operation::Lookupp,
        Nfs4Operation::Readlink,
        Nfs4Operation::Restorefh,
        Nfs4Operation::Link,
    ]);
    let (status, _) = client.nfs.run(|compound| {
        go(compound, directory);
        compound.push(&LookupArgs4 { name: name("file") });
        compound.bare(Nfs4Operation::Savefh);
        go(compound, directory);
        compound.push(&LinkArgs4 { name: name("hard") });
        compound.push(&LookupArgs4 { name: name("link") });
        compound.bare(Nfs4Operation::Readlink);
        compound.bare(Nfs4Operation::Restorefh);
        compound.bare(Nfs4Operation::Getfh);
        compound.bare(Nfs4Operation::Putpubfh);
        go(compound, directory);
        compound.bare(Nfs4Operation::Lookupp);
        compound.push(&PutfhArgs4 { object: NfsFh4::new(b"no handle").expect("it is short") });
    })?;
    ensure!(status == NfsStat4::Badhandle, "names: {status}");
    for left in ["file", "denied", "hard", "link", "moved"] {
        client.at(directory, &RemoveArgs4 { name: name(left) }, &[])?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, path) = match arguments.as_slice() {
        [address, path] => (address, path),
        [address, path, much] if much == "much" => (address, path),
        _ => bail!("usage: nfs4-operations ADDRESS:PORT DIRECTORY [much]"),
    };
    let directory: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let mut client = begin(address, "operations")?;
    if arguments.len() > 2 {
        return open_much(&mut client, &directory);
    }
    on_files(&mut client, &directory)?;
    on_denials(&mut client, &directory)?;
    on_callbacks(&mut client, address, &directory)?;
    on_names(&mut client, &directory)?;
    let control = BackchannelCtlArgs4 {
        callback_program: 0x4000_0001,
        callback_security: VarArray::new(vec![CallbackSecParms4::None])?,
    };
    client.at(&[], &control, &[])?;
    let ssv = SetSsvArgs4 { ssv: Opaque::default(), digest: Opaque::default() };
    client.at(&[], &ssv, &[NfsStat4::Inval])?;
    let missing: Vec<_> = Nfs4Operation::ALL
        .into_iter()
        .filter(|operation| operation.availability(MINOR) == Availability::Supported)
        .filter(|operation| !client.called.contains(operation))
        .filter(|operation| {
            !matches!(operation, Nfs4Operation::DestroySession | Nfs4Operation::DestroyClientid)
        })
        .map(Nfs4Operation::name)
        .collect();
    let session = client.nfs.session();
    client.nfs.send(|compound| compound.push(&DestroySessionArgs4 { session }))?;
    println!("not called: {}", missing.join(" "));
    Ok(())
}
