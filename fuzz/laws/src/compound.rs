//! NFSv4: arguments and results keep their values, and a server answers any compounds of a session
//! with valid ones.

use curt_proto::nfs4::*;
use curt_xdr::{Decode, Decoder, Encode, Opaque, VarArray, decode_all};

use crate::world::{World, bytes};

/// Maximum number of compounds of one input.
const COMPOUNDS_MAX: u32 = 8;
/// A word of arguments with these first three bytes stands for a handle from the server.
const HANDLE_WORD: [u8; 3] = [0xff, 0xff, 0xff];
/// A word with these first three bytes stands for the last stateid from the server.
const STATEID_WORD: [u8; 3] = [0xff, 0xff, 0xfe];
/// The minor version of the session.
const MINOR_VERSION: u32 = 2;

/// Decodes a value, encodes it, and compares: whether it was valid.
macro_rules! survives {
    ($bytes:expr, $($message:ty),+) => {
        $(if let Ok(value) = decode_all::<$message>($bytes) {
            let again = bytes(&value);
            assert!(again.len() <= $bytes.len(), "{value:?}");
            let decoded: $message = decode_all(&again).expect("what was encoded is decoded");
            // Numbers that a bitmap does not keep are not encoded.
            assert_eq!(again, bytes(&decoded), "{value:?}");
        })+
    };
}

/// Arguments and results of NFSv4's operations and callbacks.
///
/// # Panics
/// If a value changes.
pub fn compound_round_trip(bytes: &[u8]) {
    survives!(bytes, ExchangeIdArgs4<'_>, ExchangeIdOk4<'_>, CreateSessionArgs4<'_>, CreateSessionOk4);
    survives!(bytes, SequenceArgs4, SequenceOk4, BackchannelCtlArgs4<'_>, BindConnToSessionArgs4);
    survives!(bytes, OpenArgs4<'_>, OpenOk4<'_>, LockArgs4<'_>, LockDenied<'_>, LocktArgs4<'_>, LockuArgs4);
    survives!(bytes, TestStateidArgs4, TestStateidOk4, GetDirDelegationArgs4, GetDirDelegationOk4);
    survives!(bytes, CreateArgs4<'_>, SetattrArgs4<'_>, ReaddirArgs4, WriteArgs4<'_>, RenameArgs4<'_>);
    survives!(bytes, SecinfoOk4<'_>, CbSequenceArgs4, CbRecallArgs4<'_>, CbNotifyLockArgs4<'_>);
    survives!(bytes, CompoundHeader<'_>, CallbackHeader<'_>, CompoundReplyHeader<'_>, Fattr4<'_>, Bitmap4);
    if let Ok(fattr) = decode_all::<Fattr4<'_>>(bytes)
        && let Ok(values) = AttributeValues::decode(&fattr)
    {
        assert_eq!(values.present(), fattr.mask.common(values.present()));
        let mut again = Vec::new();
        values.encode(fattr.mask, &mut again);
        let again: Fattr4<'_> = decode_all(&again).expect("what was encoded is decoded");
        assert_eq!(AttributeValues::decode(&again), Ok(values));
    }
}

/// Successive compounds of one session. Each has the number of its operations, of the words that
/// follow, the caller (even: root), and whether its reply is kept; the words are operations with
/// their arguments.
///
/// # Panics
/// If a reply is not valid.
pub fn compounds(bytes: &[u8]) {
    let world = World::new();
    let session = open_session(&world);
    let (mut rest, mut stateid) = (bytes, Stateid::ANONYMOUS);
    // The first was RECLAIM_COMPLETE.
    for number in 2..2 + COMPOUNDS_MAX {
        let Some(([operations, words, caller, kept], after)) = rest.split_first_chunk::<4>() else {
            return;
        };
        let length = (usize::from(*words) * 4).min(after.len());
        let (body, after) = after.split_at(length);
        rest = after;
        let mut arguments = Vec::new();
        let operations = u32::from(*operations) + 1;
        let tag = Opaque::new(b"fuzz").expect("a short tag");
        CompoundHeader { tag, minor_version: MINOR_VERSION, operations }.encode(&mut arguments);
        Nfs4Operation::Sequence.encode(&mut arguments);
        sequence(session, number, kept % 2 == 1).encode(&mut arguments);
        put_words(&world, stateid, body, &mut arguments);
        let uid = if caller % 2 == 0 { 0 } else { 1000 };
        let reply = world.compound(uid, &arguments).expect("a header is not garbage");
        stateid = check(&reply, operations).unwrap_or(stateid);
    }
}

/// The words with their placeholders replaced.
fn put_words(world: &World, stateid: Stateid, words: &[u8], out: &mut Vec<u8>) {
    for word in words.chunks(4) {
        match word {
            [a, b, c, number] if [*a, *b, *c] == HANDLE_WORD => {
                world.handles[usize::from(*number) % world.handles.len()].encode(out);
            }
            [a, b, c, _] if [*a, *b, *c] == STATEID_WORD => stateid.encode(out),
            _ => out.extend_from_slice(word),
        }
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The session of a new client.
fn open_session(world: &World) -> SessionId {
    let run = |push: &dyn Fn(&mut CompoundEncoder<'_>)| {
        let mut arguments = Vec::new();
        let tag = Opaque::new(b"fuzz").expect("a short tag");
        let mut compound = CompoundEncoder::new(&mut arguments, tag, MINOR_VERSION);
        push(&mut compound);
        compound.finish();
        world.compound(0, &arguments).expect("our own compound is understood")
    };
    let owner = Opaque::new(b"fuzz").expect("a short name");
    let exchange = ExchangeIdArgs4 {
        owner: ClientOwner { verifier: Verifier4([1; 8]), owner },
        flags: ExchangeIdFlags::default(),
        state_protect: StateProtectArgs::None,
        implementation: VarArray::default(),
    };
    let reply = run(&|compound| compound.push(&exchange));
    let mut results = CompoundResults::new(&reply).expect("a header");
    let client: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).expect("an identifier");
    let channel = ChannelAttributes {
        request_max: 1 << 20,
        response_max: 1 << 20,
        response_cached_max: 4096,
        operations_max: 64,
        requests_max: 4,
        ..ChannelAttributes::default()
    };
    let create = CreateSessionArgs4 {
        clientid: client.clientid,
        sequence: client.sequence,
        flags: CreateSessionFlags::default(),
        fore: channel.clone(),
        back: channel,
        callback_program: 1 << 30,
        callback_security: VarArray::default(),
    };
    let reply = run(&|compound| compound.push(&create));
    let mut results = CompoundResults::new(&reply).expect("a header");
    let session = results.next::<CreateSessionOk4>(Nfs4Operation::CreateSession).expect("a session").session;
    // An earlier world left its client in the state directory: it has reclaimed everything.
    run(&|compound| {
        compound.push(&sequence(session, 1, false));
        compound.push(&ReclaimCompleteArgs4 { one_file_system: false });
    });
    session
}

/// SEQUENCE of the only slot.
const fn sequence(session: SessionId, number: u32, cache_this: bool) -> SequenceArgs4 {
    let (slot, highest_slot) = (SlotId(0), SlotId(0));
    SequenceArgs4 { session, sequence: SequenceId(number), slot, highest_slot, cache_this }
}

/// Checks that a reply is complete and consistent. Returns the last stateid of an OPEN in it.
fn check(reply: &[u8], operations: u32) -> Option<Stateid> {
    let mut decoder = Decoder::new(reply);
    let header: CompoundReplyHeader<'_> = decoder.get().expect("a header");
    assert!(header.results <= operations, "more results than operations");
    let (mut stateid, mut last) = (None, NfsStat4::Ok);
    for _ in 0..header.results {
        assert_eq!(last, NfsStat4::Ok, "a result follows a failure");
        let ResultHeader { operation, status } = decoder.get().expect("a result");
        result(operation, status, &mut decoder, &mut stateid)
            .unwrap_or_else(|error| panic!("{operation}: {error}: {reply:02x?}"));
        last = status;
    }
    if header.results > 0 {
        assert_eq!(last, header.status, "the status is that of the last result");
    }
    decoder.finish().expect("nothing follows the results");
    stateid
}

/// Decodes the body of a result.
fn result(
    operation: Nfs4Operation,
    status: NfsStat4,
    decoder: &mut Decoder<'_>,
    stateid: &mut Option<Stateid>,
) -> Result<(), curt_xdr::DecodeError> {
    use Nfs4Operation as Op;
    fn body<'a, T: Decode<'a>>(decoder: &mut Decoder<'a>) -> Result<(), curt_xdr::DecodeError> {
        decoder.get::<T>().map(drop)
    }
    match (operation, status) {
        (Op::Setattr, _) => return body::<Bitmap4>(decoder),
        (Op::Lock | Op::Lockt, NfsStat4::Denied) => return body::<LockDenied<'_>>(decoder),
        (_, NfsStat4::Ok) => {}
        _ => return Ok(()),
    }
    match operation {
        Op::Access => body::<AccessOk4>(decoder),
        Op::Close | Op::OpenDowngrade | Op::Lock | Op::Locku => body::<Stateid>(decoder),
        Op::Commit => body::<CommitOk4>(decoder),
        Op::Create => body::<CreateOk4>(decoder),
        Op::Getattr => {
            let got: GetattrOk4<'_> = decoder.get()?;
            AttributeValues::decode(&got.attributes).map(drop)
        }
        Op::Getfh => body::<GetfhOk4<'_>>(decoder),
        Op::Link | Op::Remove => body::<ChangeInfo>(decoder),
        Op::Open => {
            let opened: OpenOk4<'_> = decoder.get()?;
            *stateid = Some(opened.stateid);
            Ok(())
        }
        Op::Read => body::<ReadOk4<'_>>(decoder),
        Op::Readdir => listing(decoder),
        Op::Readlink => body::<ReadlinkOk4<'_>>(decoder),
        Op::Rename => body::<RenameOk4>(decoder),
        Op::Secinfo | Op::SecinfoNoName => body::<SecinfoOk4<'_>>(decoder),
        Op::Write => body::<WriteOk4>(decoder),
        Op::BindConnToSession => body::<BindConnToSessionOk4>(decoder),
        Op::ExchangeId => body::<ExchangeIdOk4<'_>>(decoder),
        Op::CreateSession => body::<CreateSessionOk4>(decoder),
        Op::Sequence => body::<SequenceOk4>(decoder),
        Op::TestStateid => body::<TestStateidOk4>(decoder),
        Op::GetDirDelegation => body::<GetDirDelegationOk4>(decoder),
        _ => Ok(()),
    }
}

fn listing(decoder: &mut Decoder<'_>) -> Result<(), curt_xdr::DecodeError> {
    decoder.get::<Verifier4>()?;
    while let ListingItem4::Entry(entry) = decoder.get()? {
        AttributeValues::decode(&entry.attributes)?;
    }
    Ok(())
}
