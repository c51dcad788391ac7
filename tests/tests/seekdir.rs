//! telldir(3), seekdir(3) and rewinddir(3) on a mount, and results of malformed listings.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::record;
use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;
use curt_tests::process;
use curt_tests::relay::{RelayedServe, ReplyRewrite};

const MINUTES: Duration = Duration::from_secs(300);

/// Reads a directory with the C library; seeks to some of the positions, the last one first, and to
/// the beginning. Prints the number of names, of distinct names, the error at the end, how often
/// another name was at a position, whether the beginning was the same, and whether lseek(2) to the
/// end returns the directory's size.
const READ: &str = r"
import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
class Entry(ctypes.Structure):
    _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('length', ctypes.c_ushort), ('kind', ctypes.c_ubyte), ('name', ctypes.c_char * 256)]
c.opendir.restype = ctypes.c_void_p
c.readdir.restype = ctypes.POINTER(Entry)
c.telldir.restype = ctypes.c_long
c.opendir.argtypes = [ctypes.c_char_p]
c.readdir.argtypes = c.telldir.argtypes = c.rewinddir.argtypes = [ctypes.c_void_p]
c.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
path, step = sys.argv[1], int(sys.argv[2])
directory = c.opendir(path.encode())
def read():
    ctypes.set_errno(0)
    entry = c.readdir(directory)
    return entry.contents.name if entry else None
at, names = [], []
while True:
    position = c.telldir(directory)
    name = read()
    if name is None:
        break
    at.append(position)
    names.append(name)
error, wrong = ctypes.get_errno(), 0
if not error:
    for index in range(len(names) - 1, -1, -step):
        c.seekdir(directory, at[index])
        wrong += read() != names[index]
c.rewinddir(directory)
begins = bool(error) or read() == names[0]
fd = os.open(path, os.O_RDONLY)
ends = os.lseek(fd, 0, os.SEEK_END) == os.fstat(fd).st_size
print(len(names), len(set(names)), error, wrong, begins, ends)
";

fn read(network: &Network, directory: &Path, step: usize) -> Result<String> {
    let mut command = network.command("python3");
    command.args(["-c", READ]).arg(directory).arg(step.to_string());
    Ok(process::run(&mut command, MINUTES)?.trim().to_owned())
}

fn fill(directory: &Path, count: u32) -> Result<()> {
    std::fs::create_dir(directory)?;
    for number in 0..count {
        std::fs::File::create(directory.join(format!("{number:012}")))?;
    }
    Ok(())
}

// SEMANTICS: list-5.
#[test]
fn every_position_of_40000_names_leads_back_to_its_name() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fill(&export.join("many"), 40_000)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let mount = CurtMount::start(&network, "mount", &server.source(), &server.ports())?;
    let said = read(&network, &mount.directory().join("many"), 997)?;
    ensure!(said == "40002 40002 0 0 True True", "{said}");
    mount.unmount()
}

/// The positions of the verifier and the entries in the record of a READDIR's reply, with its mark.
const VERIFIER: usize = 120;
const ENTRIES: usize = 128;

fn word(record: &[u8], at: usize) -> u32 {
    record[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// The positions of the names of a reply, and of their cookies.
fn entries(record: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut entries) = (ENTRIES, Vec::new());
    while word(record, at) == 1 {
        let length = word(record, at + 12) as usize;
        let cookie = at + 16 + length.next_multiple_of(4);
        entries.push((at + 16, cookie));
        at = cookie + 8;
    }
    entries
}

fn with_cookies(mut record: Vec<u8>, cookie: impl Fn(u64) -> u64) -> Vec<u8> {
    for (number, (_, at)) in entries(&record).into_iter().enumerate() {
        record[at..at + 8].copy_from_slice(&cookie(number as u64).to_be_bytes());
    }
    record
}

const NAMES: u32 = 100;

/// Malformed first replies to READDIR, and the program's result. A complete listing returns each
/// name once.
const LIES: [(&str, ReplyRewrite, Told); 7] = [
    ("cookies-of-2-to-the-63-and-more", |reply| with_cookies(reply, |number| (1 << 63) + number), Told::All),
    ("the-largest-cookies", |reply| with_cookies(reply, |number| u64::MAX - number), Told::All),
    (
        "cookies-in-no-order",
        |reply| with_cookies(reply, |number| (number + 1) * 0x5851_f42d % 1_000_003 + 1),
        Told::All,
    ),
    ("a-cookie-twice", |reply| with_cookies(reply, |number| number.min(50) + 1), Told::Error),
    (
        "a-name-with-a-slash",
        |mut reply| {
            let (name, _) = entries(&reply)[70];
            reply[name] = b'/';
            reply
        },
        Told::Error,
    ),
    (
        "nothing-and-no-end",
        |mut reply| {
            reply.truncate(ENTRIES);
            reply.extend([0; 8]);
            let mark = record::record_mark(reply.len() - 4);
            reply[..4].copy_from_slice(&mark);
            reply
        },
        Told::All,
    ),
    (
        "another-verifier",
        |mut reply| {
            reply[VERIFIER..ENTRIES].fill(0xa5);
            reply
        },
        Told::All,
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    All,
    /// EIO, and no name twice.
    Error,
}

// SEMANTICS: list-6.
#[test]
fn a_false_listing_is_returned_whole_or_ends_with_an_error() -> Result<()> {
    let served = RelayedServe::start(&[])?;
    for (what, ..) in LIES {
        fill(&served.export.join(what), NAMES)?;
    }
    let mount = served.mount("nordirplus")?;
    let (relay, network) = (&served.relay, &served.network);
    for (what, lie, told) in LIES {
        relay.rewrite_next_reply(NfsProcedure::Readdir.number(), lie);
        let said = read(network, &mount.directory().join(what), 1)?;
        ensure!(!relay.is_about_to_lie(), "{what}: nothing was asked");
        let all = format!("{0} {0} 0 0 True True", NAMES + 2);
        if told == Told::All {
            ensure!(said == all, "{what}: {said}");
            continue;
        }
        let words: Vec<&str> = said.split(' ').collect();
        let [names, different, error, ..] = *words.as_slice() else {
            anyhow::bail!("{what}: {said}");
        };
        let count: u32 = names.parse().context("a number")?;
        ensure!(error == "5" && names == different && count < NAMES + 2, "{what}: {said}");
        // The next listing is correct.
        let said = read(network, &mount.directory().join(what), 1)?;
        ensure!(said == all, "{what}, afterwards: {said}");
    }
    mount.unmount()
}
