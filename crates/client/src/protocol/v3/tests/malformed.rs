//! Malformed results of each procedure.

use curt_proto::nfs3::{self, NfsPath, WriteVerf3};
use curt_types::{Access, Device, FileKind, Stability};

use super::*;

/// Tests one procedure: its name, valid results, and the call.
type TryOne<'t> = &'t mut dyn FnMut(&str, Vec<u8>, &dyn Fn(&Rig) -> Result<bool, CallError>);

fn bytes(results: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    results.encode(&mut out);
    out
}

fn ok<T: Encode>(value: T) -> Vec<u8> {
    bytes(&NfsResult::<T, ()>::Ok(value))
}

/// All procedures, each with valid results.
fn each_procedure(mut try_one: impl FnMut(&str, Vec<u8>, &dyn Fn(&Rig) -> Result<bool, CallError>)) {
    objects(&mut try_one);
    data(&mut try_one);
    making(&mut try_one);
    moving(&mut try_one);
    listings(&mut try_one);
    file_system(&mut try_one);
}

/// GETATTR, SETATTR, LOOKUP, ACCESS and READLINK.
fn objects(try_one: TryOne<'_>) {
    let file = handle("file");
    let directory = handle("directory");
    let set = SetAttributes::default();
    try_one("GETATTR", ok(fattr()), &|rig| rig.v3.attributes(rig.caller(), &file).map(|a| a.outcome.is_ok()));
    try_one("SETATTR", ok(wcc_data()), &|rig| {
        rig.v3.set(rig.caller(), &file, &set).map(|a| a.outcome.is_ok())
    });
    let found = LookupOk { object: wire_handle("file"), attributes: Some(fattr()), directory: Some(fattr()) };
    try_one("LOOKUP", ok(found), &|rig| {
        rig.v3.find(rig.caller(), &directory, b"name").map(|a| a.outcome.is_ok())
    });
    let granted = AccessOk { attributes: Some(fattr()), access: Access::ALL.bits() };
    try_one("ACCESS", ok(granted), &|rig| {
        rig.v3.access(rig.caller(), &file, Access::ALL).map(|a| a.outcome.is_ok())
    });
    let target = ReadlinkOk { attributes: Some(fattr()), target: NfsPath::new(b"to").unwrap() };
    try_one("READLINK", ok(target), &|rig| rig.v3.readlink(rig.caller(), &file).map(|a| a.outcome.is_ok()));
}

/// READ, WRITE and COMMIT.
fn data(try_one: TryOne<'_>) {
    let file = handle("file");
    let data = curt_xdr::Opaque::new(b"bytes").unwrap();
    let read_ok = ReadOk { attributes: Some(fattr()), count: 5, eof: true, data };
    try_one("READ", ok(read_ok), &|rig| rig.read(100).map(|a| a.outcome.is_ok()));
    let written = WriteOk {
        wcc: wcc_data(),
        count: 3,
        committed: nfs3::StableHow::FileSync,
        verifier: WriteVerf3([7; 8]),
    };
    try_one("WRITE", ok(written), &|rig| {
        let request = WriteRequest {
            offset: 0,
            stability: Stability::Unstable,
            bytes: b"abc",
            set: None,
            is_lost: &|| false,
        };
        let write = |open: OpenCaller<'_>| rig.v3.write(open, &file, request);
        rig.with_open(write).map(|a| a.outcome.is_ok())
    });
    let committed = CommitOk { wcc: wcc_data(), verifier: WriteVerf3([7; 8]) };
    try_one("COMMIT", ok(committed), &|rig| {
        rig.with_open(|open| rig.v3.commit(open, &file)).map(|a| a.outcome.is_ok())
    });
}

/// CREATE, MKDIR, SYMLINK and MKNOD.
fn making(try_one: TryOne<'_>) {
    let directory = handle("directory");
    let made =
        CreateOk { object: Some(wire_handle("file")), attributes: Some(fattr()), directory: wcc_data() };
    for (procedure, new) in [
        ("CREATE", CreateRequest::file(0o644)),
        ("MKDIR", CreateRequest::directory(0o755)),
        ("SYMLINK", CreateRequest::symlink(b"to")),
        ("MKNOD", CreateRequest::node(FileKind::Fifo, Device::default(), 0o644)),
    ] {
        try_one(procedure, ok(made), &|rig| {
            let made = rig.v3.create(rig.caller(), &directory, b"name", &new);
            made.map(|a| a.outcome.is_ok())
        });
    }
}

/// REMOVE, RMDIR, RENAME and LINK.
fn moving(try_one: TryOne<'_>) {
    let file = handle("file");
    let directory = handle("directory");
    for (procedure, is_directory) in [("REMOVE", false), ("RMDIR", true)] {
        try_one(procedure, ok(wcc_data()), &|rig| {
            let removed = rig.v3.remove(rig.caller(), &directory, b"name", is_directory);
            removed.map(|a| a.outcome.is_ok())
        });
    }
    let renamed = RenameWcc { from: wcc_data(), to: WccData::default() };
    try_one("RENAME", ok(renamed), &|rig| {
        let renamed = rig.v3.rename(rig.caller(), &directory, b"a", &directory, b"b");
        renamed.map(|a| a.outcome.is_ok())
    });
    let linked = LinkWcc { attributes: Some(fattr()), directory: wcc_data() };
    try_one("LINK", ok(linked), &|rig| {
        let linked = rig.v3.link(rig.caller(), &file, &directory, b"name");
        linked.map(|a| a.outcome.is_ok())
    });
}

/// READDIR and READDIRPLUS.
fn listings(try_one: TryOne<'_>) {
    for (procedure, plus) in [("READDIR", false), ("READDIRPLUS", true)] {
        let mut results = bytes(&NfsStat3::Ok);
        listing(&mut results, plus);
        try_one(procedure, results, &|rig| {
            let page = rig.list(0, CookieVerifier::default(), plus);
            page.map(|a| a.outcome.is_ok())
        });
    }
}

/// FSSTAT, FSINFO and PATHCONF.
fn file_system(try_one: TryOne<'_>) {
    let file = handle("file");
    let space = FsstatOk {
        attributes: Some(fattr()),
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    try_one("FSSTAT", ok(space), &|rig| rig.v3.space(rig.caller(), &file).map(|a| a.outcome.is_ok()));
    let unsaid = |_: Option<Fattr>| ();
    let info = FsinfoOk {
        attributes: Some(fattr()),
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: fattr().mtime,
        properties: FsProperties(0x1b),
    };
    try_one("FSINFO", ok(info), &|rig| {
        let ok_of = |ok: FsinfoOk| (fsinfo(&ok), ());
        let answer = rig.v3.ask(rig.caller(), NfsProcedure::Fsinfo, &(), ok_of, unsaid);
        answer.map(|a| a.outcome.is_ok())
    });
    let limits = PathconfOk {
        attributes: None,
        link_max: 1,
        name_max: 255,
        no_truncation: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    };
    try_one("PATHCONF", ok(limits), &|rig| {
        let ok_of = |ok: PathconfOk| (pathconf(&ok), ());
        let answer = rig.v3.ask(rig.caller(), NfsProcedure::Pathconf, &(), ok_of, unsaid);
        answer.map(|a| a.outcome.is_ok())
    });
}

#[test]
fn results_cut_anywhere_or_too_long_are_malformed() {
    each_procedure(|procedure, results, call| {
        let rig = Rig::new();
        *rig.canned.results.lock() = results.clone();
        assert_eq!(call(&rig), Ok(true), "{procedure}");
        for length in 0..results.len() {
            *rig.canned.results.lock() = results[..length].to_vec();
            let result = call(&rig);
            assert!(
                matches!(result, Err(CallError::Malformed(_))),
                "{procedure} cut at {length}: {result:?}"
            );
        }
        *rig.canned.results.lock() = [&results[..], &[0; 4]].concat();
        let result = call(&rig);
        assert!(matches!(result, Err(CallError::Malformed(_))), "{procedure}: {result:?}");
    });
}

#[test]
fn no_changed_word_of_results_causes_a_panic() {
    each_procedure(|_, results, call| {
        let rig = Rig::new();
        for at in (0..results.len()).step_by(4) {
            for word in [0, 1, 2, 70, 255, 0x7fff_ffff, u32::MAX] {
                let mut other = results.clone();
                other[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
                *rig.canned.results.lock() = other;
                // The result must be a value or an error.
                let _ = call(&rig);
            }
        }
    });
}
