//! Malformed replies: their callers get EIO, the log has one line, and everything else continues.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::record;
use curt_tests::curt::CurtMount;
use curt_tests::process;
use curt_tests::relay::{RelayedServe, ReplyRewrite};

const MINUTE: Duration = Duration::from_secs(60);

/// The position of a GETATTR's results in a record with its mark: after mark, xid, type, status,
/// verifier and status again.
const RESULTS: usize = 28;

/// A record of these bytes, with a new mark.
fn marked(mut record: Vec<u8>) -> Vec<u8> {
    let mark = record::record_mark(record.len() - 4);
    record[..4].copy_from_slice(&mark);
    record
}

fn with_word(mut record: Vec<u8>, at: usize, word: u32) -> Vec<u8> {
    record[at..at + 4].copy_from_slice(&word.to_be_bytes());
    record
}

/// Malformed replies to GETATTR, each of which fails at another place.
const LIES: [(&str, ReplyRewrite); 7] = [
    ("results that end early", |reply| {
        let length = reply.len() - 8;
        marked(reply[..length].to_vec())
    }),
    ("results that go on", |reply| marked([reply, vec![0; 8]].concat())),
    ("a file of no type", |reply| with_word(reply, RESULTS + 4, 99)),
    ("a message that is neither call nor reply", |reply| with_word(reply, 8, 2)),
    ("a reply neither accepted nor denied", |reply| with_word(reply, 12, 7)),
    ("a status of no kind", |reply| with_word(reply, 24, 9)),
    ("a record longer than any reply", |reply| {
        [&record::record_mark(1 << 30), &reply[4..8], &[3; 60_000]].concat()
    }),
];

struct Bed {
    mount: CurtMount,
    served: RelayedServe,
}

impl Bed {
    /// A mount that requests a file's attributes each time, but not names: after an error of LOOKUP
    /// the kernel repeats it.
    fn new() -> Result<Self> {
        let served = RelayedServe::start(&[])?;
        std::fs::write(served.export.join("file"), "some text")?;
        let mount = served.mount("acregmin=0,acregmax=0,acdirmin=600,acdirmax=600")?;
        Ok(Self { mount, served })
    }

    /// The file's size by stat(1), or the error.
    fn size(&self) -> Result<String> {
        let mut command = self.served.network.command("stat");
        command.args(["-c", "%s"]).arg(self.mount.directory().join("file"));
        let (_, output, errors) = process::finish(&mut command, MINUTE)?;
        Ok(format!("{output}{errors}"))
    }

    fn warnings(&mut self) -> Vec<String> {
        let output = self.mount.process().output();
        let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        output.lines().filter(is_warning).map(str::to_owned).collect()
    }
}

// SEMANTICS: rpc-8.
#[test]
fn a_reply_that_makes_no_sense_is_eio_and_one_line_of_the_log() -> Result<()> {
    let mut bed = Bed::new()?;
    ensure!(bed.size()? == "9\n", "{}", bed.size()?);
    let mut said = bed.warnings();
    ensure!(said.is_empty(), "{said:?}");
    for (count, (what, lie)) in LIES.into_iter().enumerate() {
        bed.served.relay.rewrite_next_reply(NfsProcedure::Getattr.number(), lie);
        let size = bed.size()?;
        ensure!(!bed.served.relay.is_about_to_lie(), "{what}: nothing was asked");
        ensure!(size.contains("Input/output error"), "{what}: {size}{:#?}", bed.warnings());
        said = process::until("it is logged", MINUTE, || {
            let said = bed.warnings();
            Ok((said.len() > count).then_some(said))
        })
        .with_context(|| format!("{what} is not logged"))?;
        ensure!(said.len() == count + 1, "{what} is logged more than once: {said:#?}");
        ensure!(bed.size()? == "9\n", "{what} has consequences: {}", bed.size()?);
    }
    ensure!(bed.warnings().len() == said.len(), "{:#?}", bed.warnings());
    bed.mount.unmount()
}

// SEMANTICS: rpc-8.
#[test]
fn a_reply_that_nobody_waits_for_is_passed_over() -> Result<()> {
    let mut bed = Bed::new()?;
    bed.served.relay.rewrite_next_reply(NfsProcedure::Getattr.number(), |reply| {
        let xid = u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]);
        let stray = with_word(reply.clone(), 4, xid.wrapping_add(1000));
        [stray.clone(), reply.clone(), reply, stray].concat()
    });
    ensure!(bed.size()? == "9\n", "{}", bed.size()?);
    ensure!(!bed.served.relay.is_about_to_lie(), "nothing was asked");
    ensure!(bed.size()? == "9\n", "{}", bed.size()?);
    ensure!(bed.warnings().is_empty(), "{:#?}", bed.warnings());
    bed.mount.unmount()
}
