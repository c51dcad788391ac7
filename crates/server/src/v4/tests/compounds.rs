//! The loop over operations: positions, limits, failures, versions, tags.

use curt_proto::nfs4::{
    Attribute, AttributeValues, Availability, BackchannelCtlArgs4, BindConnToSessionArgs4,
    BindConnToSessionOk4, Bitmap4, CallbackSecParms4, ChannelAttributes, ChannelDirFromClient,
    ChannelDirFromServer, CompoundEncoder, CompoundResults, Fattr4, GetattrArgs4, GetattrOk4, HandlesNeeded,
    LinkArgs4, LinkOk4, LookupArgs4, Nfs4Operation, NfsFh4, NfsStat4, PutfhArgs4, ReadArgs4, ReadOk4,
    RemoveArgs4, RemoveOk4, SequenceOk4, SetattrArgs4, StableHow4, Stateid, WriteArgs4, WriteOk4,
};
use curt_xdr::{Encode, Opaque, VarArray};

use super::fixture::{Fixture, fattr, go, name};
use super::test_client::{Server, compound, creating, user};

fn status_of(reply: &[u8]) -> (NfsStat4, u32) {
    let results = CompoundResults::new(reply).unwrap();
    (results.header().status, results.header().results)
}

#[test]
fn a_compound_ends_at_the_first_failure_and_returns_its_tag() {
    let server = Server::new();
    let client = server.client("one");
    let reply = client.run(&|compound| {
        compound.bare(Nfs4Operation::Putrootfh);
        compound.bare(Nfs4Operation::Restorefh);
        compound.bare(Nfs4Operation::Getfh);
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    let header = *results.header();
    assert_eq!((header.status, header.tag.bytes(), header.results), (NfsStat4::Nofilehandle, &b"tag"[..], 3));
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    assert_eq!(results.status(Nfs4Operation::Putrootfh), Ok(NfsStat4::Ok));
    assert_eq!(results.status(Nfs4Operation::Restorefh), Ok(NfsStat4::Nofilehandle));
    assert!(results.decoder().remaining().is_empty());
}

#[test]
fn other_minor_versions_are_refused_whatever_follows() {
    let server = Server::new();
    for minor in [0, 3, u32::MAX] {
        let reply =
            server.raw(user(0), &compound(minor, &|compound| compound.bare(Nfs4Operation::Putrootfh)));
        assert_eq!(status_of(&reply), (NfsStat4::MinorVersMismatch, 0), "{minor}");
    }
    for minor in [1, 2] {
        let reply = server.raw(user(0), &compound(minor, &|_| {}));
        assert_eq!(status_of(&reply), (NfsStat4::Ok, 0));
    }
}

#[test]
fn a_tag_that_is_not_utf_8_is_invalid() {
    let server = Server::new();
    for tag in [&b"\xff"[..], b"tag\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"] {
        let mut arguments = Vec::new();
        let mut compound = CompoundEncoder::new(&mut arguments, Opaque::new(tag).unwrap(), 1);
        compound.bare(Nfs4Operation::Putrootfh);
        compound.finish();
        let reply = server.raw(user(0), &arguments);
        let header = *CompoundResults::new(&reply).unwrap().header();
        assert_eq!((header.status, header.tag.bytes(), header.results), (NfsStat4::Inval, tag, 0));
    }
}

#[test]
fn numbers_that_the_minor_version_does_not_have_are_illegal() {
    let server = Server::new();
    for (number, minor) in [(0_u32, 1_u32), (2, 1), (59, 1), (76, 2), (10_044, 1), (u32::MAX, 2)] {
        let mut client = server.client(&format!("{number}"));
        client.minor = minor;
        let reply = client.run(&|_| {});
        assert_eq!(status_of(&reply), (NfsStat4::Ok, 1));
        // As the second operation of a compound whose count is changed by hand.
        let mut arguments = Vec::new();
        Opaque::<10>::new(b"").unwrap().encode(&mut arguments);
        for word in [minor, 1, number] {
            word.encode(&mut arguments);
        }
        let reply = server.raw(user(0), &arguments);
        let mut results = CompoundResults::new(&reply).unwrap();
        assert_eq!(results.header().status, NfsStat4::OpIllegal, "{number}");
        assert_eq!(results.status(Nfs4Operation::Illegal), Ok(NfsStat4::OpIllegal));
    }
}

/// Each operation without SEQUENCE, without a current filehandle, and if it is not supported.
#[test]
fn operations_are_refused_where_the_table_says_so() {
    let server = Server::new();
    for minor in [1, 2] {
        let mut client = server.client(&format!("{minor}"));
        client.minor = minor;
        for operation in Nfs4Operation::ALL {
            let properties = operation.properties();
            match operation.availability(minor) {
                Availability::Illegal => {}
                Availability::NotSupported => {
                    let status = client.status(&|compound| compound.bare(operation));
                    assert_eq!(status, NfsStat4::Notsupp, "{operation}");
                }
                Availability::Supported if properties.handles != HandlesNeeded::Neither => {
                    let status = client.status(&|compound| compound.bare(operation));
                    assert_eq!(status, NfsStat4::Nofilehandle, "{operation}");
                    let alone = server.raw(user(0), &compound(minor, &|compound| compound.bare(operation)));
                    assert_eq!(status_of(&alone).0, NfsStat4::OpNotInSession, "{operation}");
                    // Its arguments are missing, or it has none.
                    let status = client.status(&|compound| {
                        compound.bare(Nfs4Operation::Putrootfh);
                        compound.bare(Nfs4Operation::Savefh);
                        compound.bare(operation);
                    });
                    let has_none = matches!(
                        operation,
                        Nfs4Operation::Getfh
                            | Nfs4Operation::Savefh
                            | Nfs4Operation::Restorefh
                            | Nfs4Operation::Lookupp
                            | Nfs4Operation::Readlink
                    );
                    assert_eq!(status != NfsStat4::Badxdr, has_none, "{operation}: {status}");
                }
                Availability::Supported => {}
            }
        }
    }
}

#[test]
fn a_count_beyond_the_bytes_is_an_error_of_the_missing_operation() {
    let server = Server::new();
    let mut arguments = compound(1, &|_| {});
    let at = arguments.len() - 4;
    arguments[at..].copy_from_slice(&u32::MAX.to_be_bytes());
    let reply = server.raw(user(0), &arguments);
    assert_eq!(status_of(&reply), (NfsStat4::Badxdr, 1));
}

fn channel(response_max: u32, response_cached_max: u32, operations_max: u32) -> ChannelAttributes {
    ChannelAttributes {
        header_padding: 0,
        request_max: 2000,
        response_max,
        response_cached_max,
        operations_max,
        requests_max: 1,
        rdma_ird: VarArray::default(),
    }
}

#[test]
fn the_sessions_limits_are_exact() {
    let server = Server::new();
    let client = server.client_with("one", channel(600, 300, 8));
    let root = client.files();
    let with = |count: usize| {
        client.status(&|compound| {
            for _ in 1..count {
                compound.bare(Nfs4Operation::Putrootfh);
            }
        })
    };
    assert_eq!((with(8), with(9)), (NfsStat4::Ok, NfsStat4::TooManyOps));
    client.take_back();
    let opened = client.open(&root, &creating("file", "owner", 3, 0)).unwrap();
    let data = vec![7; 2004];
    let write = |count: usize| {
        client.at(&opened.handle, &|compound| {
            let data = Opaque::new(&data[..count]).unwrap();
            compound.push(&WriteArgs4 {
                stateid: opened.stateid,
                offset: 0,
                stable: StableHow4::Unstable,
                data,
            });
        })
    };
    let write = |count: usize| {
        let status = write(count);
        // A request that is too large does not use its sequence id.
        if status == NfsStat4::ReqTooBig {
            client.take_back();
        }
        status
    };
    let fits = (0..500).rev().map(|words| 4 * words).find(|count| write(*count) == NfsStat4::Ok).unwrap();
    assert!(fits > 1400 && write(fits + 4) == NfsStat4::ReqTooBig, "{fits}");
    // A READ is shortened; other results that do not fit are errors.
    assert_eq!(write(1200), NfsStat4::Ok);
    let read = ReadArgs4 { stateid: opened.stateid, offset: 0, count: 1200 };
    for (caches, max) in [(false, 600), (true, 300)] {
        client.caches.set(caches);
        let reply = client.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
            compound.push(&read);
        });
        assert_eq!(status_of(&reply).0, NfsStat4::Ok);
        assert!((max - 8..=max).contains(&(24 + reply.len())), "{}", reply.len());
        let supported = GetattrArgs4 { attributes: Attribute::supported(1).common(Attribute::READABLE) };
        let status = client.at(&root, &|compound| {
            for _ in 0..6 {
                compound.push(&supported);
            }
        });
        let expected = if caches { NfsStat4::RepTooBigToCache } else { NfsStat4::RepTooBig };
        assert_eq!(status, expected);
    }
}

/// The result of the operation that fails for want of room has room itself.
#[test]
fn no_reply_is_larger_than_the_session_allows() {
    let server = Server::new();
    let large = server.client("large");
    let root = large.files();
    let reads = |compound: &mut CompoundEncoder<'_>| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
        let attributes = Attribute::set(&[Attribute::Owner, Attribute::Fileid]);
        compound.push(&GetattrArgs4 { attributes });
        compound.bare(Nfs4Operation::Getfh);
    };
    let sets = |compound: &mut CompoundEncoder<'_>| {
        reads(compound);
        compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes: Fattr4::default() });
    };
    let ways: [&dyn Fn(&mut CompoundEncoder<'_>); 2] = [&reads, &sets];
    for (way, operations) in ways.into_iter().enumerate() {
        let whole = 24 + large.run(operations).len();
        for limit in (128..400).step_by(4) {
            let client = server.client_with(&format!("{way} {limit}"), channel(limit, 0, 8));
            let reply = client.run(operations);
            let limit = usize::try_from(limit).unwrap();
            assert!(24 + reply.len() <= limit, "{way}: {} bytes of {limit}", 24 + reply.len());
            // The last operation is also refused if the longest of its results has no room.
            let fits = limit >= whole + if way == 1 { 16 } else { 0 };
            assert!(!fits || status_of(&reply).0 == NfsStat4::Ok, "{way}: {limit}");
            assert!(limit >= whole || status_of(&reply).0 == NfsStat4::RepTooBig, "{way}: {limit}");
        }
        assert!(whole < 380, "all limits were tried: {whole}");
    }
}

/// A change is refused only if its own result has no room.
#[test]
fn a_session_with_small_replies_removes_files_and_opens_none() {
    let server = Server::new();
    let large = server.client("large");
    let root = large.files();
    large.open(&root, &creating("file", "owner", 3, 0)).unwrap();
    // SEQUENCE and the tag of three bytes take 84 bytes, PUTFH 8, and the header of the next one 8.
    for caches in [false, true] {
        let small = match caches {
            false => ChannelAttributes { response_max: 128, ..super::test_client::channel() },
            true => ChannelAttributes { response_cached_max: 128, ..super::test_client::channel() },
        };
        let client = server.client_with(&format!("small {caches}"), small);
        client.caches.set(caches);
        let too_big = if caches { NfsStat4::RepTooBigToCache } else { NfsStat4::RepTooBig };
        let remove = |name: &str| {
            let remove = RemoveArgs4 { name: Opaque::new(name.as_bytes()).unwrap() };
            client.at(&root, &|compound| compound.push(&remove))
        };
        assert_eq!(remove("missing"), NfsStat4::Noent, "20 bytes more fit");
        let opening = creating("file", "owner", 3, 0);
        let rename = curt_proto::nfs4::RenameArgs4 {
            from: Opaque::new(b"file").unwrap(),
            to: Opaque::new(b"other").unwrap(),
        };
        assert_eq!(client.at(&root, &|compound| compound.push(&opening)), too_big);
        let renamed = client.at(&root, &|compound| {
            compound.bare(Nfs4Operation::Savefh);
            compound.push(&rename);
        });
        assert_eq!(renamed, too_big);
        assert!(large.walk(&["srv", "files", "file"]).is_ok());
        let other = format!("other {caches}");
        large.open(&root, &creating(&other, "owner", 3, 0)).unwrap();
        assert_eq!(remove(&other), NfsStat4::Ok);
    }
}

/// XDR does not limit the data of a WRITE: as many are written as a READ could return.
#[test]
fn a_write_that_is_larger_than_any_transfer_writes_a_part() {
    let server = Server::new();
    let large = ChannelAttributes { request_max: 4 << 20, ..super::test_client::channel() };
    let client = server.client_with("one", large);
    let opened = client.open(&client.files(), &creating("file", "owner", 3, 0)).unwrap();
    let data = vec![7; (1 << 20) + 4096];
    let write = WriteArgs4 {
        stateid: opened.stateid,
        offset: 0,
        stable: StableHow4::Unstable,
        data: Opaque::new(&data).unwrap(),
    };
    let written: Result<WriteOk4, _> =
        client.last(&[Nfs4Operation::Putfh], Nfs4Operation::Write, &|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
            compound.push(&write);
        });
    assert_eq!(written.unwrap().count, 1 << 20);
}

/// A connection is associated with more sessions than one client has.
#[test]
fn the_first_of_many_sessions_is_destroyed_over_their_connection() {
    let server = Server::new().connected();
    let sessions: Vec<_> =
        (0..100).map(|number| server.client(&format!("client {number}")).session).collect();
    let destroy = curt_proto::nfs4::DestroySessionArgs4 { session: sessions[0] };
    let reply = server.raw(user(0), &compound(1, &|compound| compound.push(&destroy)));
    assert_eq!(status_of(&reply), (NfsStat4::Ok, 1));
}

/// Its sessions have no credential of callbacks until BACKCHANNEL_CTL.
#[test]
fn a_backchannel_is_bound_only_if_callbacks_have_a_credential() {
    let server = Server::new().connected();
    let client = server.client("one");
    let bind = |direction| {
        let asked = BindConnToSessionArgs4 { session: client.session, direction, rdma: false };
        let reply = server.raw(user(0), &compound(1, &|compound| compound.push(&asked)));
        let mut results = CompoundResults::new(&reply).unwrap();
        match results.header().status {
            NfsStat4::Ok => {
                let bound: BindConnToSessionOk4 = results.next(Nfs4Operation::BindConnToSession).unwrap();
                Ok(bound.direction)
            }
            refused => Err(refused),
        }
    };
    assert_eq!(bind(ChannelDirFromClient::ForeOrBoth), Ok(ChannelDirFromServer::Fore));
    assert_eq!(bind(ChannelDirFromClient::Back), Err(NfsStat4::Inval));
    assert_eq!(bind(ChannelDirFromClient::BackOrBoth), Err(NfsStat4::Inval));
    let control = BackchannelCtlArgs4 {
        callback_program: 9,
        callback_security: VarArray::new(vec![CallbackSecParms4::None]).unwrap(),
    };
    assert_eq!(client.status(&|compound| compound.push(&control)), NfsStat4::Ok);
    assert_eq!(bind(ChannelDirFromClient::ForeOrBoth), Ok(ChannelDirFromServer::Both));
    assert_eq!(bind(ChannelDirFromClient::Back), Ok(ChannelDirFromServer::Back));
}

// SEMANTICS: stateful-7.
#[test]
fn a_repeated_compound_has_the_same_reply_and_no_second_effect() {
    let server = Server::new();
    let client = server.client("one");
    client.caches.set(true);
    let root = client.files();
    let remove = RemoveArgs4 { name: Opaque::new(b"file").unwrap() };
    client.open(&root, &creating("file", "owner", 1, 0)).unwrap();
    let operations = |compound: &mut CompoundEncoder<'_>| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
        compound.push(&remove);
    };
    let first = client.run(&operations);
    assert_eq!(status_of(&first), (NfsStat4::Ok, 3));
    for _ in 0..3 {
        assert_eq!(client.repeat(&operations), first);
    }
    let other = client.repeat(&|compound| compound.bare(Nfs4Operation::Putrootfh));
    assert_eq!(status_of(&other), (NfsStat4::SeqFalseRetry, 1));
    // One byte of data makes another request if it is near one of the ends. In the middle of large
    // data it is not looked for: the reply is that of the first request, which has been executed.
    let opened = client.open(&root, &creating("written", "owner", 3, 0)).unwrap();
    let mut data = vec![7; 100_000];
    let write = |data: &[u8], is_repeated: bool| {
        let arguments = WriteArgs4 {
            stateid: opened.stateid,
            offset: 0,
            stable: StableHow4::Unstable,
            data: Opaque::new(data).unwrap(),
        };
        let operations = |compound: &mut CompoundEncoder<'_>| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
            compound.push(&arguments);
        };
        status_of(&if is_repeated { client.repeat(&operations) } else { client.run(&operations) }).0
    };
    assert_eq!(write(&data, false), NfsStat4::Ok);
    for (place, status) in [
        (0, NfsStat4::SeqFalseRetry),
        (3_000, NfsStat4::SeqFalseRetry),
        (50_000, NfsStat4::Ok),
        (97_000, NfsStat4::SeqFalseRetry),
        (99_999, NfsStat4::SeqFalseRetry),
    ] {
        data[place] ^= 1;
        assert_eq!(write(&data, true), status, "{place}");
        data[place] ^= 1;
    }
    assert_eq!(write(&data, true), NfsStat4::Ok);
    let written = Stateid { seqid: 0, ..opened.stateid };
    let kept = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
        compound.push(&ReadArgs4 { stateid: written, offset: 50_000, count: 1 });
    });
    let mut kept = CompoundResults::new(&kept).unwrap();
    kept.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    assert_eq!(kept.status(Nfs4Operation::Putfh), Ok(NfsStat4::Ok));
    assert_eq!(kept.next::<ReadOk4<'_>>(Nfs4Operation::Read).unwrap().data.bytes(), [7]);
    assert_eq!(status_of(&client.run(&operations)), (NfsStat4::Noent, 3));
    // A READ whose reply is cached contains its data.
    let opened = client.open(&root, &creating("data", "owner", 3, 0)).unwrap();
    let data = Opaque::new(&[9; 3000]).unwrap();
    let stateid = Stateid { seqid: 0, ..opened.stateid };
    let written = client.at(&opened.handle, &|compound| {
        compound.push(&WriteArgs4 { stateid, offset: 0, stable: StableHow4::Unstable, data });
    });
    assert_eq!(written, NfsStat4::Ok);
    let reads = |compound: &mut CompoundEncoder<'_>| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
        compound.push(&ReadArgs4 { stateid, offset: 0, count: 3000 });
    };
    let first = client.run(&reads);
    assert!(first.len() > 3000);
    assert_eq!(client.repeat(&reads), first);
}

/// Results of a GETATTR of the current object: its fileid, mode, link count and change attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    fileid: u64,
    mode: u32,
    numlinks: u32,
    change: u64,
}

const SEEN: Bitmap4 =
    Attribute::set(&[Attribute::Fileid, Attribute::Mode, Attribute::Numlinks, Attribute::Change]);

fn see(results: &mut CompoundResults<'_>) -> Seen {
    let got: GetattrOk4<'_> = results.next(Nfs4Operation::Getattr).unwrap();
    let values = AttributeValues::decode(&got.attributes).unwrap();
    Seen {
        fileid: values.fileid.unwrap(),
        mode: values.mode.unwrap(),
        numlinks: values.numlinks.unwrap(),
        change: values.change.unwrap(),
    }
}

// The attributes that LOOKUP found are not those of another current object, nor those after a
// change.
#[test]
fn getattr_returns_the_attributes_of_the_current_object_after_the_changes_before_it() {
    Fixture::with_each_tree(|fixture| {
        let getattr = GetattrArgs4 { attributes: SEEN };
        let mode = |mode| AttributeValues { mode: Some(mode), ..AttributeValues::default() };
        let reply = fattr(&mode(0o600), |attributes| {
            fixture.run(|compound| {
                go(compound, &["one"]);
                compound.push(&getattr);
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&LookupArgs4 { name: name("file") });
                compound.push(&getattr);
                compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
                compound.push(&getattr);
                compound.bare(Nfs4Operation::Restorefh);
                compound.push(&getattr);
            })
        });
        assert_eq!(reply.status(), NfsStat4::Ok);
        let mut results = reply.after(1);
        let directory = see(&mut results);
        results.next::<()>(Nfs4Operation::Savefh).unwrap();
        results.next::<()>(Nfs4Operation::Lookup).unwrap();
        let file = see(&mut results);
        results.next::<Bitmap4>(Nfs4Operation::Setattr).unwrap();
        let changed = see(&mut results);
        results.next::<()>(Nfs4Operation::Restorefh).unwrap();
        assert_eq!(see(&mut results), directory);
        assert_ne!(file.fileid, directory.fileid);
        assert_eq!((file.mode, changed.mode, changed.fileid), (0o755, 0o600, file.fileid));
        let linked = fixture.run(|compound| {
            go(compound, &["one", "file"]);
            compound.bare(Nfs4Operation::Savefh);
            go(compound, &["one"]);
            compound.push(&LinkArgs4 { name: name("other") });
            compound.push(&getattr);
            compound.push(&LookupArgs4 { name: name("other") });
            compound.push(&getattr);
            compound.bare(Nfs4Operation::Restorefh);
            compound.push(&getattr);
        });
        assert_eq!(linked.status(), NfsStat4::Ok);
        let mut results = linked.after(2);
        results.next::<()>(Nfs4Operation::Savefh).unwrap();
        results.next::<()>(Nfs4Operation::Putrootfh).unwrap();
        results.next::<()>(Nfs4Operation::Lookup).unwrap();
        let ok: LinkOk4 = results.next(Nfs4Operation::Link).unwrap();
        let grown = see(&mut results);
        results.next::<()>(Nfs4Operation::Lookup).unwrap();
        let other = see(&mut results);
        results.next::<()>(Nfs4Operation::Restorefh).unwrap();
        assert_eq!((grown.fileid, grown.change), (directory.fileid, ok.directory.after));
        assert_eq!((other.fileid, other.numlinks), (file.fileid, 2));
        assert_eq!(see(&mut results), other);
        let removed = fixture.run(|compound| {
            go(compound, &["one"]);
            compound.bare(Nfs4Operation::Savefh);
            compound.push(&LookupArgs4 { name: name("other") });
            compound.bare(Nfs4Operation::Restorefh);
            compound.push(&RemoveArgs4 { name: name("other") });
            compound.push(&getattr);
            compound.push(&LookupArgs4 { name: name("file") });
            compound.push(&getattr);
            compound.push(&LookupArgs4 { name: name("other") });
        });
        assert_eq!(removed.status(), NfsStat4::Notdir);
        let mut results = removed.after(1);
        results.next::<()>(Nfs4Operation::Savefh).unwrap();
        results.next::<()>(Nfs4Operation::Lookup).unwrap();
        results.next::<()>(Nfs4Operation::Restorefh).unwrap();
        let ok: RemoveOk4 = results.next(Nfs4Operation::Remove).unwrap();
        let shrunk = see(&mut results);
        results.next::<()>(Nfs4Operation::Lookup).unwrap();
        assert_eq!((shrunk.fileid, shrunk.change), (directory.fileid, ok.directory.after));
        assert_eq!(see(&mut results).numlinks, 1);
    });
}
