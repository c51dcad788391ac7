//! Writes the initial inputs of fuzzing to `fuzz/corpus`: a valid message of each kind, encoded by
//! Curt. `cargo run -p curt-fuzz-laws --example seeds`; existing files are kept.

use std::path::Path;

use curt_observe::events::Event;
use curt_proto::nfs3::{NfsFh3, NfsProcedure};
use curt_proto::nfs4::*;
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::message::{encode_accepted_header, encode_call_header};
use curt_rpc::record;
use curt_xdr::{Encode, Opaque, put_opaque};

fn main() -> std::io::Result<()> {
    for (target, name, bytes) in records()
        .into_iter()
        .chain(messages())
        .chain(portmap())
        .chain(mount())
        .chain(nfs())
        .chain(compounds())
        .chain(states())
        .chain(exports())
        .chain(filters())
        .chain(events())
        .chain(questions())
    {
        let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus")).join(target);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join(format!("seed-{name}")), bytes)?;
    }
    Ok(())
}

/// The words that stand for handles of the server's objects.
const ROOT: u32 = 0xffff_ff00;
const FILE: u32 = 0xffff_ff01;
const LINK: u32 = 0xffff_ff03;
/// The word that stands for the last stateid.
const STATEID: u32 = 0xffff_fe00;

type Seed = (&'static str, String, Vec<u8>);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn records() -> Vec<Seed> {
    let whole = [&record::record_mark(8)[..], &[7; 8]].concat();
    let fragments = [words(&[4]), vec![1; 4], words(&[0]), words(&[1 << 31 | 3]), vec![2; 3]].concat();
    let long = words(&[1 << 31 | 1000]);
    [("whole", &whole), ("fragments", &fragments), ("long", &long)]
        .map(|(name, bytes)| ("record", name.to_owned(), [&[3], bytes.as_slice()].concat()))
        .to_vec()
}

/// Steps of the state of NFSv4.
fn states() -> Vec<Seed> {
    let both_present = [[0, 0, 0, 0], [8, 0, 0, 0], [0, 1, 0, 0], [8, 1, 0, 0]];
    // Both open and lock; the second is denied, the first is silent, and loses what it held.
    let expiry = [[1, 0, 0, 0x12], [5, 0, 0, 2], [1, 1, 0, 2], [10, 0, 100, 0], [1, 1, 0, 2], [4, 0, 0, 0]];
    // The server restarts: the first reclaims its open and its lock, and the second waits.
    let restart = [
        [1, 0, 0, 2],
        [5, 0, 0, 2],
        [12, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0x80, 2],
        [5, 0, 0, 0x82],
        [0, 1, 0, 0],
        [8, 1, 0, 0],
        [1, 1, 0, 2],
        [8, 0, 0, 0],
        [11, 0, 0, 0],
        [1, 1, 0, 2],
        [9, 1, 0, 0],
    ];
    let steps = |steps: &[[u8; 4]]| [both_present.concat(), steps.concat()].concat();
    [("expiry", steps(&expiry)), ("restart", steps(&restart))]
        .map(|(name, bytes)| ("states", name.to_owned(), bytes))
        .to_vec()
}

fn messages() -> Vec<Seed> {
    let credential = RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"seed"),
        uid: 1000,
        gid: 1000,
        groups: AuthSysGids::first_of(&[1, 2, 3]),
    });
    let (mut call, mut none, mut reply) = (Vec::new(), Vec::new(), Vec::new());
    encode_call_header(&mut call, 1, 100_003, 3, 1, &credential);
    encode_call_header(&mut none, 2, 100_000, 2, 0, &RpcCredential::None);
    encode_accepted_header(&mut reply, 3);
    let denied = words(&[4, 1, 1, 1, 5]);
    [("sys", call), ("none", none), ("reply", reply), ("denied", denied)]
        .map(|(name, bytes)| ("message", name.to_owned(), bytes))
        .to_vec()
}

fn portmap() -> Vec<Seed> {
    let mapping = words(&[100_003, 3, 6, 2049]);
    let mut binding = words(&[100_003, 3]);
    for text in [b"tcp".as_slice(), b"127.0.0.1.8.1", b"superuser"] {
        put_opaque(&mut binding, text);
    }
    let address = b"::1.8.1".to_vec();
    [("mapping", mapping), ("binding", binding), ("address", address)]
        .map(|(name, bytes)| ("portmap_round_trip", name.to_owned(), bytes))
        .to_vec()
}

fn mount() -> Vec<Seed> {
    let mut path = Vec::new();
    put_opaque(&mut path, b"/export");
    let mut seeds = vec![("mount_round_trip", "path".to_owned(), path.clone())];
    let mut entry = words(&[1]);
    entry.extend(&path);
    entry.extend(&path);
    entry.extend(words(&[0]));
    seeds.push(("mount_round_trip", "list".to_owned(), entry));
    seeds.push(("mount_round_trip", "reply".to_owned(), words(&[0, 4, 7, 2, 1, 0])));
    for procedure in 0..6_u8 {
        seeds.push(("mount_service", format!("{procedure}"), [&[procedure, 0], path.as_slice()].concat()));
    }
    seeds
}

/// Meaningful arguments of each procedure, with the word that stands for a handle of the root.
fn arguments(procedure: NfsProcedure) -> Vec<u8> {
    let name = |text: &[u8]| {
        let mut out = Vec::new();
        put_opaque(&mut out, text);
        out
    };
    let mode = words(&[1, 0o644, 0, 0, 0, 0, 0]);
    let named = |text: &[u8]| [words(&[ROOT]), name(text)].concat();
    match procedure {
        NfsProcedure::Null => Vec::new(),
        NfsProcedure::Getattr | NfsProcedure::Fsstat | NfsProcedure::Fsinfo | NfsProcedure::Pathconf => {
            words(&[ROOT])
        }
        NfsProcedure::Readlink => words(&[LINK]),
        NfsProcedure::Setattr => [words(&[FILE]), mode, words(&[0])].concat(),
        NfsProcedure::Lookup => named(b"file"),
        NfsProcedure::Remove => named(b"link"),
        NfsProcedure::Rmdir => named(b"directory"),
        NfsProcedure::Access => words(&[FILE, 0x3f]),
        NfsProcedure::Read => words(&[FILE, 0, 0, 64]),
        NfsProcedure::Write => [words(&[FILE, 0, 0, 4, 2]), name(b"data")].concat(),
        NfsProcedure::Create => [named(b"new"), words(&[2, 1, 2])].concat(),
        NfsProcedure::Mkdir => [named(b"new"), mode].concat(),
        NfsProcedure::Symlink => [named(b"new"), mode, name(b"file")].concat(),
        NfsProcedure::Mknod => [named(b"new"), words(&[7]), mode].concat(),
        NfsProcedure::Rename => [named(b"file"), named(b"other")].concat(),
        NfsProcedure::Link => [words(&[FILE]), named(b"other")].concat(),
        NfsProcedure::Readdir => words(&[ROOT, 0, 0, 0, 0, 512]),
        NfsProcedure::ReaddirPlus => words(&[ROOT, 0, 0, 0, 0, 512, 1024]),
        NfsProcedure::Commit => words(&[FILE, 0, 0, 0]),
    }
}

fn nfs() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut handle = Vec::new();
    NfsFh3::new(&[0x5a; 24]).expect("a short handle").encode(&mut handle);
    for procedure in NfsProcedure::ALL {
        let number = u8::try_from(procedure.number()).expect("22 procedures");
        let arguments = arguments(procedure);
        let length = u8::try_from(arguments.len() / 4).expect("short arguments");
        seeds.push((
            "service",
            procedure.name().to_lowercase(),
            [&[number, length, 0, 0], arguments.as_slice()].concat(),
        ));
        let mut plain = vec![number];
        for word in arguments.chunks(4) {
            let stands_for_one = word.starts_with(&[0xff; 3]);
            plain.extend(if stands_for_one { &handle } else { word });
        }
        seeds.push(("nfs_round_trip", procedure.name().to_lowercase(), plain));
    }
    seeds.push(("handle", "bit".to_owned(), vec![13, 1]));
    seeds.push(("handle", "cut".to_owned(), vec![255, 20]));
    seeds.push(("handle", "given".to_owned(), Vec::new()));
    seeds
}

/// The bytes of an operation of a compound.
fn operation<A: OperationArguments>(arguments: &A) -> Vec<u8> {
    let mut out = Vec::new();
    A::OPERATION.encode(&mut out);
    arguments.encode(&mut out);
    out
}

/// A compound: its operations, which begin with PUTFH of a handle of the server.
fn compound(handle: u32, operations: &[Vec<u8>]) -> Vec<u8> {
    let words = [words(&[Nfs4Operation::Putfh.number(), handle]), operations.concat()].concat();
    let count = u8::try_from(operations.len() + 1).expect("a few operations");
    let length = u8::try_from(words.len() / 4).expect("a short compound");
    [&[count, length, 0, 1], words.as_slice()].concat()
}

/// Compounds of files, names, and opens.
fn compounds() -> Vec<Seed> {
    let name = |name: &'static str| Opaque::new(name.as_bytes()).expect("a short name");
    let bare = |operation: Nfs4Operation| words(&[operation.number()]);
    let mode = [0, 0, 1, 0xa4];
    let mask = Attribute::set(&[Attribute::Mode]);
    let attributes = Fattr4 { mask, values: Opaque::new(&mode).expect("four bytes") };
    let getattr =
        operation(&GetattrArgs4 { attributes: Attribute::supported(2).common(Attribute::READABLE) });
    let readdir = operation(&ReaddirArgs4 {
        cookie: 0,
        verifier: Verifier4::default(),
        directory_count: 1024,
        max_count: 4096,
        attributes: Attribute::supported(2).common(Attribute::READABLE),
    });
    let lookup = operation(&LookupArgs4 { name: name("file") });
    let open = OpenArgs4 {
        seqid: 0,
        share_access: ShareAccess4(3),
        share_deny: 0,
        owner: StateOwner { clientid: Clientid(0), owner: name_of_owner() },
        how: OpenHow::Create(CreateHow4::Unchecked(attributes)),
        claim: OpenClaim::Null(name("file")),
    };
    let data = Opaque::new(b"data").expect("four bytes");
    let (stateid, stable) = (Stateid::CURRENT, StableHow4::FileSync);
    let write = operation(&WriteArgs4 { stateid, offset: 0, stable, data });
    let read = operation(&ReadArgs4 { stateid, offset: 0, count: 64 });
    let close = words(&[Nfs4Operation::Close.number(), 0, STATEID]);
    let create = operation(&CreateArgs4 { kind: CreateType4::Directory, name: name("made"), attributes });
    let set = operation(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
    let save = bare(Nfs4Operation::Savefh);
    let rename = operation(&RenameArgs4 { from: name("file"), to: name("other") });
    let remove = operation(&RemoveArgs4 { name: name("directory") });
    let verify = operation(&VerifyArgs4 { attributes });
    let rows = [
        ("look", compound(ROOT, &[getattr.clone(), readdir, lookup, getattr])),
        ("open", [compound(ROOT, &[operation(&open), write, read]), compound(FILE, &[close])].concat()),
        ("names", compound(ROOT, &[save, rename, create, set, verify])),
        ("remove", compound(ROOT, &[remove, bare(Nfs4Operation::Lookupp)])),
    ];
    let mut seeds: Vec<Seed> = rows.map(|(name, bytes)| ("compounds", name.to_owned(), bytes)).to_vec();
    let mut plain = Vec::new();
    open.encode(&mut plain);
    seeds.push(("compound_round_trip", "open".to_owned(), plain));
    let mut plain = Vec::new();
    attributes.encode(&mut plain);
    seeds.push(("compound_round_trip", "attributes".to_owned(), plain));
    seeds
}

fn name_of_owner() -> OpaqueLimited<'static> {
    Opaque::new(b"owner").expect("a short name")
}

fn exports() -> Vec<Seed> {
    let texts = [
        ("plain", "/srv 192.168.1.0/24(rw,sync) *(ro)\n"),
        ("defaults", "/srv -rw,no_root_squash host.example @trusted(ro) fd00::/64\n"),
        (
            "quoted",
            "\"/srv/with blank\" *.example(rw,\\\n  insecure) # comment\n/a\\040b *(all_squash,anonuid=1,anongid=2)\n",
        ),
        ("sec", "/srv *(sec=sys:none,rw,sec=sys,ro,fsid=3,crossmnt)\n"),
    ];
    texts.map(|(name, text)| ("exports", name.to_owned(), text.as_bytes().to_vec())).to_vec()
}

/// A user, a time, and events with thread, object and numbers.
fn filters() -> Vec<Seed> {
    let event = |event: Event| u8::try_from(event.index()).expect("a small table");
    let operation = [
        [event(Event::NfsLookupEnter), 4, 1],
        [event(Event::RpcCall), 4, 2],
        [event(Event::RpcReply), 9, 2],
        [event(Event::NfsLookupExit), 4, 3],
    ];
    let call =
        [[event(Event::NfsdCall), 1, 1], [event(Event::NfsdExport), 1, 2], [event(Event::NfsdReply), 1, 1]];
    vec![
        ("filter", "operation".to_owned(), [&[1, 2], operation.as_flattened()].concat()),
        ("filter", "call".to_owned(), [&[1, 0], call.as_flattened()].concat()),
    ]
}

/// Records as in memory, a short recording with its own text, and shards.
fn events() -> Vec<Seed> {
    let lookup = Event::NfsLookupExit.index();
    let first = |words: u64, event: usize| words | (event as u64) << 16 | 42 << 32;
    let record =
        [first(8, lookup), 1000, 6, 2, 4, u64::from_le_bytes(*b"name\0\0\0\0"), 9, (-2_i64).cast_unsigned()];
    let marks = [first(3, 0xff00), 2000, 0, first(5, 0xff02), 3000, 0, 1, 5];
    let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let stream = [bytes(&record), bytes(&marks)].concat();
    let described = concat!(
        r#"{"origin":{"curt":"9","pid":7,"program":"mount","subject":"a:/b on /c","time_of_day_offset":1},"events":["#,
        r#"{"name":"x_enter","span":"enter","fields":[{"name":"name","kind":"text"}]},"#,
        r#"{"name":"x_exit","span":"exit","fields":[{"name":"error","kind":"errno"}]},"#,
        r#"{"name":"call","span":"begin","fields":[{"name":"xid","kind":"hex"}]},"#,
        r#"{"name":"reply","span":"end","fields":[{"name":"xid","kind":"hex"}]}]}"#
    );
    let head = |described: &str| {
        let mut head = bytes(&[u64::from_le_bytes(*b"CURTEVT2"), described.len() as u64]);
        head.extend(described.as_bytes());
        head.resize(head.len().next_multiple_of(8), 0);
        head
    };
    let short = [first(5, 0), 5, 4, 1, 97, first(4, 1), 6, 4, 0, first(4, 2), 7, 0, 9, first(4, 3), 8, 0, 9];
    let own = [head(described), bytes(&short)].concat();
    // One shard of 32 words: unlocked, some words written, none consumed.
    let shard = |records: &[u64]| {
        let mut shard = vec![0; 16 + 32];
        shard[1] = records.len() as u64;
        shard[16..16 + records.len()].copy_from_slice(records);
        bytes(&shard)
    };
    let shards = [vec![1, 5], shard(&record)].concat();
    let layout = r#"{"ring":{"shards":1,"shard_words":32},"#;
    let mut ring = head(&described.replacen('{', layout, 1));
    ring.resize(4096, 0);
    ring.extend(shard(&short));
    vec![
        ("recording", "records".to_owned(), stream),
        ("recording", "own".to_owned(), own),
        ("ring", "shards".to_owned(), shards),
        ("ring", "own".to_owned(), ring),
    ]
}

fn questions() -> Vec<Seed> {
    let requests = [
        ("get", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("head", "HEAD /metrics?x HTTP/1.0\n\n"),
        ("proxy", "GET http://a:1/metrics HTTP/1.1\r\n\r\n"),
        ("post", "POST / HTTP/1.1\r\n\r\n"),
        ("http2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ];
    let questions = [
        ("report", r#"{"ask":"report"}"#),
        ("watch", r#"{"ask":"watch"}"#),
        ("remount", r#"{"ask":"remount","options":"ro,acregmin=5","table":true}"#),
        ("explain", r#"{"ask":"explain","linux":"nocto"}"#),
        ("explained", r#"{"ask":"explained","paths":10}"#),
        ("events", r#"{"ask":"events","patterns":"nfs_*,rpc_call"}"#),
        ("answer", r#"{"refused":"no"}"#),
    ];
    let requests = requests.map(|(name, text)| ("metrics_request", name, text));
    let questions = questions.map(|(name, text)| ("control_question", name, text));
    requests
        .into_iter()
        .chain(questions)
        .map(|(target, name, text)| (target, name.to_owned(), text.as_bytes().to_vec()))
        .collect()
}
