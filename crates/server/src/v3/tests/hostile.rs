//! Malicious names and bytes.

use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, MkdirArguments, NfsProcedure, NfsResult, NfsStat3, RenameArguments,
    RenameWcc, Sattr, WccData,
};

use super::fixture::{Fixture, place};

#[test]
fn bad_names_get_the_rfcs_status_from_every_procedure_that_takes_one() {
    let fixture = Fixture::new();
    let root = fixture.root();
    fixture.make_file(root, b"file", 0o644);
    let long = [b'n'; 256];
    let longest = [b'n'; 65_535];
    let rows: [(&[u8], NfsStat3); 6] = [
        (b"", NfsStat3::Acces),
        (b"a/b", NfsStat3::Acces),
        (b"../escape", NfsStat3::Acces),
        (b"nul\0", NfsStat3::Acces),
        (&long, NfsStat3::Nametoolong),
        (&longest, NfsStat3::Nametoolong),
    ];
    for (name, expected) in rows {
        let shown = name.escape_ascii().to_string().chars().take(20).collect::<String>();
        let place = place(root, name);
        let attributes = Some(fixture.attributes(root));
        assert_eq!(fixture.lookup(root, name), NfsResult::Failed(expected, attributes), "LOOKUP {shown}");
        for procedure in [NfsProcedure::Remove, NfsProcedure::Rmdir] {
            let refused: NfsResult<WccData, WccData> = fixture.call(procedure, &place);
            let NfsResult::Failed(status, wcc) = refused else { panic!("{procedure} {shown}") };
            assert_eq!((status, wcc.after), (expected, attributes), "{procedure} {shown}");
        }
        let create = CreateArguments { place, how: CreateHow::Unchecked(Sattr::default()) };
        let refused: NfsResult<CreateOk, WccData> = fixture.call(NfsProcedure::Create, &create);
        assert_eq!(refused.status(), expected, "CREATE {shown}");
        let mkdir = MkdirArguments { place, attributes: Sattr::default() };
        let refused: NfsResult<CreateOk, WccData> = fixture.call(NfsProcedure::Mkdir, &mkdir);
        assert_eq!(refused.status(), expected, "MKDIR {shown}");
        let good = super::fixture::place(root, b"file");
        for (from, to) in [(good, place), (place, good)] {
            let refused: NfsResult<RenameWcc, RenameWcc> =
                fixture.call(NfsProcedure::Rename, &RenameArguments { from, to });
            assert_eq!(refused.status(), expected, "RENAME {shown}");
        }
    }
}

/// A call with any bytes ends with results or a reject, and the next call is served.
#[test]
fn noise_is_answered_or_rejected() {
    let fixture = Fixture::new();
    let handle = super::fixture::bytes_of(&fixture.root());
    let mut state = 1u64;
    for round in 0..4000u32 {
        let mut arguments = if round % 2 == 0 { handle.clone() } else { Vec::new() };
        for _ in 0..round % 50 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Small words are more often valid.
            let [.., last] = state.to_be_bytes();
            let [first, ..] = state.to_be_bytes();
            arguments.extend([0, 0, 0, if first < 200 { first % 9 } else { last }]);
        }
        let _ = fixture.raw(round % 24, &arguments);
    }
    assert!(fixture.raw(1, &handle).is_ok());
}
