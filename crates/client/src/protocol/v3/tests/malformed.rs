//! Results that no procedure returns.

use curt_proto::nfs3::{
    self, AccessMask, AccessOk, CookieVerifier, NfsPath, ReadlinkOk, RenameWcc, WccData, WriteVerifier,
};
use curt_types::{SetAttributes, Stability};

use super::*;
use crate::protocol::MknodType;

/// What one procedure is tried with: its name, results that are right for it, and the call.
type TryOne<'t> = &'t mut dyn FnMut(&str, Vec<u8>, &dyn Fn(&Rig) -> Result<bool, CallError>);

fn bytes(results: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    results.encode(&mut out);
    out
}

fn ok<T: Encode>(value: T) -> Vec<u8> {
    bytes(&NfsResult::<T, ()>::Ok(value))
}

/// All procedures, each with results that are right for it.
fn each_procedure(mut try_one: impl FnMut(&str, Vec<u8>, &dyn Fn(&Rig) -> Result<bool, CallError>)) {
    objects(&mut try_one);
    data(&mut try_one);
    making(&mut try_one);
    moving(&mut try_one);
    listings(&mut try_one);
    file_system(&mut try_one);
}

/// NULL, GETATTR, SETATTR, LOOKUP, ACCESS and READLINK.
fn objects(try_one: TryOne<'_>) {
    let file = handle("file");
    let directory = handle("directory");
    let set = SetAttributes::default();
    try_one("NULL", vec![], &|rig| null(&rig.wire, rig.asker()).map(|()| true));
    try_one("GETATTR", ok(fattr()), &|rig| {
        getattr(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
    });
    try_one("SETATTR", ok(wcc_data()), &|rig| {
        setattr(&rig.wire, rig.asker(), &file, &set, None).map(|a| a.outcome.is_ok())
    });
    let found = nfs3::LookupOk {
        object: wire_handle("file"),
        attributes: Some(fattr()),
        directory: Some(fattr()),
    };
    try_one("LOOKUP", ok(found), &|rig| {
        lookup(&rig.wire, rig.asker(), &directory, b"name").map(|a| a.outcome.is_ok())
    });
    let granted = AccessOk {
        attributes: Some(fattr()),
        access: AccessMask::ALL,
    };
    try_one("ACCESS", ok(granted), &|rig| {
        access(&rig.wire, rig.asker(), &file, 0x3f).map(|a| a.outcome.is_ok())
    });
    let target = ReadlinkOk {
        attributes: Some(fattr()),
        target: NfsPath::new(b"to").unwrap(),
    };
    try_one("READLINK", ok(target), &|rig| {
        readlink(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
    });
}

/// READ, WRITE and COMMIT.
fn data(try_one: TryOne<'_>) {
    let file = handle("file");
    let data = curt_xdr::Opaque::new(b"bytes").unwrap();
    let read_ok = nfs3::ReadOk {
        attributes: Some(fattr()),
        count: 5,
        eof: true,
        data,
    };
    try_one("READ", ok(read_ok), &|rig| {
        read(&rig.wire, rig.asker(), &file, 0, 100).map(|a| a.outcome.is_ok())
    });
    let written = nfs3::WriteOk {
        wcc: wcc_data(),
        count: 3,
        committed: nfs3::StableHow::FileSync,
        verifier: WriteVerifier([7; 8]),
    };
    try_one("WRITE", ok(written), &|rig| {
        write(&rig.wire, rig.asker(), &file, 0, Stability::Unstable, b"abc").map(|a| a.outcome.is_ok())
    });
    let committed = nfs3::CommitOk {
        wcc: wcc_data(),
        verifier: WriteVerifier([7; 8]),
    };
    try_one("COMMIT", ok(committed), &|rig| {
        commit(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
    });
}

/// CREATE, MKDIR, SYMLINK and MKNOD.
fn making(try_one: TryOne<'_>) {
    let directory = handle("directory");
    let set = SetAttributes::default();
    let made = nfs3::CreateOk {
        object: Some(wire_handle("file")),
        attributes: Some(fattr()),
        directory: wcc_data(),
    };
    try_one("CREATE", ok(made), &|rig| {
        create(
            &rig.wire,
            rig.asker(),
            &directory,
            b"name",
            &CreateSemantics::Exclusive([1; 8]),
        )
        .map(|a| a.outcome.is_ok())
    });
    try_one("MKDIR", ok(made), &|rig| {
        mkdir(&rig.wire, rig.asker(), &directory, b"name", &set).map(|a| a.outcome.is_ok())
    });
    try_one("SYMLINK", ok(made), &|rig| {
        symlink(&rig.wire, rig.asker(), &directory, b"name", b"to", &set).map(|a| a.outcome.is_ok())
    });
    try_one("MKNOD", ok(made), &|rig| {
        mknod(&rig.wire, rig.asker(), &directory, b"name", MknodType::Fifo, &set).map(|a| a.outcome.is_ok())
    });
}

/// REMOVE, RMDIR, RENAME and LINK.
fn moving(try_one: TryOne<'_>) {
    let file = handle("file");
    let directory = handle("directory");
    try_one("REMOVE", ok(wcc_data()), &|rig| {
        remove(&rig.wire, rig.asker(), &directory, b"name").map(|a| a.outcome.is_ok())
    });
    try_one("RMDIR", ok(wcc_data()), &|rig| {
        rmdir(&rig.wire, rig.asker(), &directory, b"name").map(|a| a.outcome.is_ok())
    });
    let renamed = RenameWcc {
        from: wcc_data(),
        to: WccData::default(),
    };
    try_one("RENAME", ok(renamed), &|rig| {
        rename(&rig.wire, rig.asker(), (&directory, b"a"), (&directory, b"b")).map(|a| a.outcome.is_ok())
    });
    let linked = nfs3::LinkWcc {
        attributes: Some(fattr()),
        directory: wcc_data(),
    };
    try_one("LINK", ok(linked), &|rig| {
        link(&rig.wire, rig.asker(), &file, &directory, b"name").map(|a| a.outcome.is_ok())
    });
}

/// READDIR and READDIRPLUS.
fn listings(try_one: TryOne<'_>) {
    let directory = handle("directory");
    let (mut plain, mut plus) = (bytes(&NfsStat3::Ok), bytes(&NfsStat3::Ok));
    listing(&mut plain, false);
    listing(&mut plus, true);
    try_one("READDIR", plain, &|rig| {
        readdir(
            &rig.wire,
            rig.asker(),
            &directory,
            0,
            CookieVerifier::default(),
            4096,
        )
        .map(|a| a.outcome.is_ok())
    });
    try_one("READDIRPLUS", plus, &|rig| {
        readdirplus(
            &rig.wire,
            rig.asker(),
            &directory,
            0,
            CookieVerifier::default(),
            4096,
        )
        .map(|a| a.outcome.is_ok())
    });
}

/// FSSTAT, FSINFO and PATHCONF.
fn file_system(try_one: TryOne<'_>) {
    let file = handle("file");
    let space = nfs3::FsstatOk {
        attributes: Some(fattr()),
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    try_one("FSSTAT", ok(space), &|rig| {
        fsstat(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
    });
    let info = nfs3::FsinfoOk {
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
        properties: nfs3::FsProperties(0x1b),
    };
    try_one("FSINFO", ok(info), &|rig| {
        fsinfo(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
    });
    let limits = nfs3::PathconfOk {
        attributes: None,
        link_max: 1,
        name_max: 255,
        no_truncation: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    };
    try_one("PATHCONF", ok(limits), &|rig| {
        pathconf(&rig.wire, rig.asker(), &file).map(|a| a.outcome.is_ok())
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
        assert!(
            matches!(result, Err(CallError::Malformed(_))),
            "{procedure}: {result:?}"
        );
    });
}

#[test]
fn no_word_of_results_panics_when_it_is_something_else() {
    each_procedure(|_, results, call| {
        let rig = Rig::new();
        for at in (0..results.len()).step_by(4) {
            for word in [0, 1, 2, 70, 255, 0x7fff_ffff, u32::MAX] {
                let mut other = results.clone();
                other[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
                *rig.canned.results.lock() = other;
                // Whatever it is, it is a value or an error.
                let _ = call(&rig);
            }
        }
    });
}
