//! Log lines about clients that send malformed data: one line each, whatever else they send.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use anyhow::{Result, ensure};
use curt_proto::nfs3;
use curt_rpc::record;
use curt_tests::process::until;
use curt_xdr::{Encode as _, put_opaque};

use super::victim::*;

/// A record of these words.
fn words(words: &[u32]) -> Vec<u8> {
    let mut record = record::record_mark(4 * words.len()).to_vec();
    for word in words {
        word.encode(&mut record);
    }
    record
}

/// Data that are sent three times or, if it is half a record, once: a name, the bytes, and the text
/// of the log line.
fn cases(root_handle: &[u8]) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let getattr = |arguments: &[u8]| call_record(1, (nfs3::PROGRAM, 3, 1), arguments);
    let mut root = Vec::new();
    put_opaque(&mut root, root_handle);
    let half = getattr(&root)[..30].to_vec();
    vec![
        ("arguments that are cut", getattr(&root[..8]), "cannot be decoded"),
        ("arguments that go on", getattr(&[&root[..], &[0; 8]].concat()), "cannot be decoded"),
        ("a reply", words(&[1, 1, 0, 0, 0, 0]), "closing the connection"),
        ("no RPC", b"GET / HTTP/1.1\r\n\r\n".to_vec(), "closing the connection"),
        ("another version of RPC", words(&[1, 0, 3, 0, 0, 0, 0, 0, 0, 0]), ""),
        ("a record beyond its limit", record::record_mark(1 << 30).to_vec(), "closing the connection"),
        ("half a record", half, "ended inside a record"),
    ]
}

#[test]
fn each_bad_client_costs_one_line_of_the_log() -> Result<()> {
    let mut victim = Victim::start(&[])?;
    let mut clients = Vec::new();
    for (what, bytes, words) in cases(&victim.root) {
        let mut stream = victim.connect()?;
        let line = format!("client {}: ", stream.local_addr()?);
        let times = if what == "half a record" { 1 } else { 3 };
        for _ in 0..times {
            // The connection may be closed already.
            let _ = stream.write_all(&bytes);
        }
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        until(&format!("{what} is logged"), SOON, || {
            let output = victim.running.output();
            let said = output.lines().find(|said| said.contains(&line));
            said.map(|said| {
                ensure!(said.contains("WARN") && said.contains(words), "{what}: {said}");
                Ok(())
            })
            .transpose()
        })?;
        clients.push((what, line));
    }
    victim.expect_unharmed()?;
    let output = victim.running.output();
    for (what, line) in &clients {
        let count = output.matches(line.as_str()).count();
        ensure!(count == 1, "{what}: {count} lines\n{output}");
    }
    ensure!(victim.warnings() == clients.len(), "{output}");
    Ok(())
}
