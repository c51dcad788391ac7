//! Each procedure over a transport that returns the results chosen by the test.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod malformed;

use std::time::{Duration, Instant};

use curt_observe::Operation;
use curt_proto::nfs3::{
    self, Cookie, CookieVerf3, DirectoryEntry, DirectoryEntryPlus, Fileid, Ftype, ListingEncoder, NfsTime,
    ReaddirArguments, WccAttr,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{CallReply, Interrupt, RpcRequest, Transport},
};
use curt_types::{CookieVerifier, SetTime, Timestamp};
use curt_xdr::Encode;
use parking_lot::Mutex;

use super::*;
use crate::{
    errno,
    protocol::{OpenContext, OperationFigure},
    threads::Clock,
};

#[derive(Debug)]
struct Stopped(Instant);

impl Clock for Stopped {
    fn now(&self) -> Instant {
        self.0
    }

    fn pause(&self, _: Duration, _: &Interrupt) {}
}

/// Returns the same results for every call, and stores the last arguments.
struct Canned {
    results: Mutex<Vec<u8>>,
    arguments: Mutex<Vec<u8>>,
}

impl Transport for Canned {
    fn call(&self, request: &RpcRequest<'_>, _: &Interrupt) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        *self.arguments.lock() = arguments;
        let results = self.results.lock().clone();
        if results.len() > request.results_max {
            return Err(CallError::Malformed(DecodeError::Trailing(results.len() - request.results_max)));
        }
        Ok(CallReply::from_results(results))
    }
}

type ReaddirAnswer = Answer<ReaddirPage, Option<Attributes>>;

struct Rig {
    canned: Arc<Canned>,
    v3: Arc<NfsV3>,
    interrupt: Interrupt,
}

impl Rig {
    fn new() -> Self {
        let canned = Arc::new(Canned { results: Mutex::default(), arguments: Mutex::default() });
        let transport: Arc<dyn Transport> = canned.clone();
        let wire = RpcClient::new(transport, Arc::new(Stopped(Instant::now())));
        Self { canned, v3: NfsV3::new(Arc::new(wire)), interrupt: Interrupt::never() }
    }

    fn answers(&self, results: &impl Encode) {
        let mut bytes = Vec::new();
        results.encode(&mut bytes);
        *self.canned.results.lock() = bytes;
    }

    fn caller(&self) -> RpcCaller<'_> {
        RpcCaller { credential: &RpcCredential::None, interrupt: &self.interrupt }
    }

    /// The names after `cookie`.
    fn list(&self, cookie: u64, verifier: CookieVerifier, plus: bool) -> ReaddirAnswer {
        let request = ListRequest { cookie, verifier, size: 4096, plus, rights: None };
        self.v3.list(self.caller(), &handle("directory"), request)
    }

    /// Calls `ask` with an open file.
    fn with_open<R>(&self, ask: impl FnOnce(OpenCaller<'_>) -> R) -> R {
        let open = OpenContext { owner: 1, credential: Arc::new(RpcCredential::None) };
        ask(OpenCaller { open: &open, interrupt: &self.interrupt })
    }

    fn read(&self, count: u64) -> Answer<ReadData, Option<Attributes>> {
        let answer = self.with_open(|open| self.v3.read(open, &handle("file"), 0..count, None));
        answer.map(|answer| answer.expect("nobody was there to take it"))
    }

    fn sent(&self, arguments: &impl Encode) {
        let mut bytes = Vec::new();
        arguments.encode(&mut bytes);
        assert_eq!(*self.canned.arguments.lock(), bytes);
    }
}

fn handle(name: &str) -> FileHandle {
    FileHandle::new(name.as_bytes()).unwrap()
}

fn wire_handle(name: &str) -> NfsFh3 {
    NfsFh3::new(name.as_bytes()).unwrap()
}

fn fattr() -> Fattr {
    let time = |seconds| NfsTime { seconds, nanoseconds: 5 };
    Fattr {
        kind: Ftype::Regular,
        mode: 0o100_644,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 5,
        used: 4096,
        rdev: nfs3::SpecData { major: 6, minor: 7 },
        fsid: 8,
        fileid: Fileid(9),
        atime: time(10),
        mtime: time(11),
        ctime: time(12),
    }
}

fn wcc_data() -> WccData {
    let before = WccAttr { size: 4, mtime: fattr().mtime, ctime: fattr().ctime };
    WccData { before: Some(before), after: Some(fattr()) }
}

fn name() -> Filename<'static> {
    Filename::new(b"name").unwrap()
}

fn place() -> DirOpArgs<'static> {
    DirOpArgs { directory: wire_handle("directory"), name: name() }
}

fn listing(out: &mut Vec<u8>, plus: bool) {
    let verifier = CookieVerf3([3; 8]);
    let mut encoder = ListingEncoder::new(out, 4096, 4096, Some(fattr()), verifier).unwrap();
    for (number, text) in [(1, "a"), (2, "bc")] {
        let (fileid, name, cookie) =
            (Fileid(number), Filename::new(text.as_bytes()).unwrap(), Cookie(number + 10));
        if plus {
            let entry = DirectoryEntryPlus {
                fileid,
                name,
                cookie,
                attributes: Some(fattr()),
                handle: Some(wire_handle(text)),
            };
            encoder.push_plus(&entry).unwrap();
        } else {
            encoder.push(&DirectoryEntry { fileid, name, cookie }).unwrap();
        }
    }
    encoder.finish(true);
}

#[test]
fn refusals_carry_the_attributes_in_the_reply() {
    let rig = Rig::new();
    let attributes = Attributes::from(fattr());
    rig.answers(&NfsResult::<(), _>::Failed(NfsStat3::Noent, Some(fattr())));
    let answer = rig.v3.find(rig.caller(), &handle("directory"), b"name").unwrap();
    assert_eq!((answer.outcome, answer.attributes), (Err(Fault::Noent), Some(attributes)));
    rig.answers(&NfsResult::<(), _>::Failed(NfsStat3::Exist, wcc_data()));
    let new = CreateRequest::file(0o644);
    let answer = rig.v3.create(rig.caller(), &handle("directory"), b"name", &new).unwrap();
    assert_eq!((answer.outcome, answer.attributes.after), (Err(Fault::Exist), Some(attributes)));
    rig.answers(&NfsResult::<(), _>::Failed(NfsStat3::Io, Some(fattr())));
    let answer = rig.read(10).unwrap();
    assert_eq!((answer.outcome.map(drop), answer.attributes), (Err(Fault::Io), Some(attributes)));
}

#[test]
fn arguments_match_the_request() {
    let rig = Rig::new();
    rig.answers(&NfsResult::<_, ()>::Ok(wcc_data()));
    let time = Timestamp::new(77, 8);
    let set = SetAttributes {
        mode: Some(0o4755),
        size: Some(3),
        atime: SetTime::ServerTime,
        mtime: SetTime::Time(time),
        ..SetAttributes::default()
    };
    rig.v3.set(rig.caller(), &handle("file"), &set).unwrap();
    let nfs_time = NfsTime { seconds: 77, nanoseconds: 8 };
    rig.sent(&SetattrArguments {
        object: wire_handle("file"),
        attributes: nfs3::Sattr {
            mode: Some(0o4755),
            uid: None,
            gid: None,
            size: Some(3),
            atime: nfs3::TimeHow::SetToServerTime,
            mtime: nfs3::TimeHow::SetToClientTime(nfs_time),
        },
        guard: None,
    });
    rig.v3.remove(rig.caller(), &handle("directory"), b"name", false).unwrap();
    rig.sent(&place());
    rig.answers(&NfsResult::<_, ()>::Ok(AccessOk { attributes: None, access: 0x3f }));
    let asked = Access::READ.with(Access::EXECUTE);
    let granted = rig.v3.access(rig.caller(), &handle("file"), asked).unwrap();
    assert_eq!(granted.outcome, Ok(asked), "what was not asked for is not granted");
    rig.sent(&AccessArguments { object: wire_handle("file"), access: 0x21 });
}

#[test]
fn listings_are_decoded_in_order_with_all_fields() {
    let rig = Rig::new();
    let mut results = Vec::new();
    NfsStat3::Ok.encode(&mut results);
    listing(&mut results, true);
    *rig.canned.results.lock() = results;
    let page = rig.list(0, CookieVerifier::default(), true).unwrap();
    assert_eq!(page.attributes, Some(Attributes::from(fattr())));
    let page = page.outcome.unwrap();
    assert_eq!((page.end, page.verifier), (true, CookieVerifier([3; 8])));
    let names: Vec<_> =
        page.names.iter().map(|name| (&*name.name, name.cookie, name.handle.clone())).collect();
    assert_eq!(names, [(&b"a"[..], 11, Some(handle("a"))), (&b"bc"[..], 12, Some(handle("bc")))]);
    let mut results = Vec::new();
    NfsStat3::Ok.encode(&mut results);
    listing(&mut results, false);
    *rig.canned.results.lock() = results;
    let verifier = CookieVerifier([9; 8]);
    rig.list(5, verifier, false).unwrap();
    rig.sent(&ReaddirArguments {
        directory: wire_handle("directory"),
        cookie: Cookie(5),
        verifier: verifier.into(),
        count: 4096,
    });
}

#[test]
fn names_that_no_directory_can_contain_are_malformed() {
    for text in ["", "a/b", "/", "a\0b"] {
        let rig = Rig::new();
        let mut results = Vec::new();
        NfsStat3::Ok.encode(&mut results);
        let mut encoder =
            ListingEncoder::new(&mut results, 4096, 4096, None, CookieVerf3::default()).unwrap();
        let name = Filename::new(text.as_bytes()).unwrap();
        encoder.push(&DirectoryEntry { fileid: Fileid(1), name, cookie: Cookie(1) }).unwrap();
        encoder.finish(true);
        *rig.canned.results.lock() = results;
        let result = rig.list(0, CookieVerifier::default(), false);
        assert!(matches!(result, Err(CallError::Malformed(_))), "{text:?}");
    }
}

#[test]
fn requests_are_counted_with_their_bytes_and_refusals() {
    let rig = Rig::new();
    rig.answers(&NfsResult::<_, ()>::Ok(fattr()));
    rig.v3.attributes(rig.caller(), &handle("file")).unwrap();
    rig.answers(&NfsResult::<(), ()>::Failed(NfsStat3::Stale, ()));
    rig.v3.attributes(rig.caller(), &handle("file")).unwrap().outcome.unwrap_err();
    let counted = |figure| rig.v3.rpc.statistics().value(Operation::Nfs3(NfsProcedure::Getattr), figure);
    let figures = [
        OperationFigure::Operations,
        OperationFigure::Transmissions,
        OperationFigure::Errors,
        OperationFigure::BytesSent,
        OperationFigure::BytesReceived,
    ];
    assert_eq!(figures.map(counted), [2, 2, 1, 16, 4 + 84 + 4]);
    assert_eq!(rig.v3.rpc.statistics().operations(), 2);
}

#[test]
fn names_too_long_for_a_message_are_refused_without_a_request() {
    let rig = Rig::new();
    let long = vec![b'x'; 70_000];
    let answer = rig.v3.find(rig.caller(), &handle("directory"), &long).unwrap();
    assert_eq!(answer.outcome, Err(Fault::Nametoolong));
    assert_eq!(rig.v3.rpc.statistics().operations(), 0);
}

#[test]
fn every_status_has_an_errno() {
    for status in NfsStat3::ALL {
        let fault = Fault::from(*status);
        assert_ne!(errno::of_fault(fault).raw_os_error(), 0, "{fault:?}");
    }
}
