//! The FUSE requests of a mount's daemon and their replies, as traced by strace: each read from
//! /dev/fuse, each reply.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::network::Network;
use crate::process::{self, RunningProcess};

/// FUSE_GETATTR and FUSE_STATFS (linux/fuse.h).
pub const GETATTR: u32 = 3;
/// See [`GETATTR`].
pub const STATFS: u32 = 17;
/// Timeout of strace to begin, end, or write.
const STRACE_TIMEOUT: Duration = Duration::from_secs(120);
/// The used length of the headers of requests and replies: length, operation or error, unique
/// number.
const HEADER: usize = 16;

/// A traced daemon.
pub struct StraceSession {
    strace: RunningProcess,
    file: std::path::PathBuf,
}

/// A request and its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StracedRequest {
    /// The operation.
    pub operation: u32,
    /// The descriptor from which it was read.
    pub descriptor: u32,
    /// The descriptor to which its reply was written, if it had one.
    pub answered: Option<u32>,
}

impl StraceSession {
    /// Traces the process and all its threads.
    ///
    /// # Errors
    /// strace cannot be started, or is not permitted.
    pub fn start(network: &Network, pid: u32) -> Result<Self> {
        let file = network.directory().join(format!("strace-{pid}"));
        let mut command = network.command("strace");
        command.args(["-f", "-p", &pid.to_string(), "-xx", "-s", "16"]);
        command.args(["-e", "trace=read,write,writev", "-e", "signal=none"]);
        let strace = RunningProcess::start("strace", command.arg("-o").arg(&file))?;
        strace.wait_for("attached", STRACE_TIMEOUT)?;
        Ok(Self { strace, file })
    }

    /// Ends tracing; the daemon continues. The requests are in the order in which they were read.
    ///
    /// # Errors
    /// strace's output cannot be parsed.
    pub fn stop(mut self) -> Result<Vec<StracedRequest>> {
        if self.strace.is_running()? {
            self.strace.signal(Signal::INT)?;
        }
        self.strace.wait(STRACE_TIMEOUT)?;
        requests(&std::fs::read_to_string(&self.file)?)
    }
}

/// The descriptors from which requests were read.
#[must_use]
pub fn descriptors(requests: &[StracedRequest]) -> BTreeSet<u32> {
    requests.iter().map(|request| request.descriptor).collect()
}

fn requests(text: &str) -> Result<Vec<StracedRequest>> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found: BTreeMap<u64, (usize, StracedRequest)> = BTreeMap::new();
    for line in text.lines() {
        // "1234 read(7, "\x40…", 1052672) = 64", or in two parts, with calls of other threads in
        // between.
        let Some((thread, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        if call.contains("<unfinished ...>") {
            begun.insert(thread, call);
            continue;
        }
        let resumed = call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"));
        let (before, after) = match resumed {
            Some((_, after)) => (begun.remove(thread).unwrap_or_default(), after),
            None => (call, call),
        };
        let Some((name, rest)) = before.split_once('(') else {
            continue;
        };
        let descriptor = rest.split([',', ' ']).next().and_then(|word| word.parse::<u32>().ok());
        // A read's bytes are known when it ends, a write's when it begins.
        let bytes = header(if name == "read" { after } else { before });
        let (Some(descriptor), Some(bytes)) = (descriptor, bytes) else {
            continue;
        };
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let unique = u64::from(word(8)) | u64::from(word(12)) << 32;
        if name == "read" {
            let request = StracedRequest { operation: word(4), descriptor, answered: None };
            found.insert(unique, (found.len(), request));
        } else if let Some((_, request)) = found.get_mut(&unique) {
            ensure!(request.answered.is_none(), "request {unique} was answered twice: {line}");
            request.answered = Some(descriptor);
        }
    }
    let mut requests: Vec<_> = found.into_values().collect();
    requests.sort_by_key(|(order, _)| *order);
    Ok(requests.into_iter().map(|(_, request)| request).collect())
}

/// The first bytes of the first string, if they are a complete header.
fn header(call: &str) -> Option<Vec<u8>> {
    let string = call.split('"').nth(1)?;
    let bytes: Option<Vec<u8>> =
        string.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits, 16).ok()).collect();
    bytes.filter(|bytes| bytes.len() >= HEADER)
}

/// Runs a script while the daemon is traced, and returns its requests.
///
/// # Errors
/// The errors of tracing or of the script.
pub fn requests_of(network: &Network, pid: u32, script: &str) -> Result<Vec<StracedRequest>> {
    let tracing = StraceSession::start(network, pid)?;
    let done = process::run(network.command("bash").args(["-euc", script]), STRACE_TIMEOUT);
    let requests = tracing.stop()?;
    done.context("while it was traced")?;
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_were_interrupted_by_others_are_joined() -> Result<()> {
        let bytes = |words: [u32; 4]| -> String {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
        };
        let (asked, other) = (bytes([40, GETATTR, 6, 0]), bytes([40, STATFS, 8, 0]));
        let (reply, short) = (bytes([120, 0, 6, 0]), bytes([96, 0, 8, 0]));
        let text = format!(
            "10 read(5,  <unfinished ...>\n11 read(7, \"{other}\", 4096) = 40\n10 <... read resumed>\"{asked}\", 4096) = 40\n\
             11 writev(7, [{{iov_base=\"{short}\", iov_len=16}}], 1 <unfinished ...>\n10 write(5, \"{reply}\", 120) = 120\n\
             11 <... writev resumed>) = 96\n10 write(1, \"\\x61\", 1) = 1\n"
        );
        let found = requests(&text)?;
        let request =
            |operation, descriptor| StracedRequest { operation, descriptor, answered: Some(descriptor) };
        assert_eq!(found, [request(STATFS, 7), request(GETATTR, 5)]);
        Ok(())
    }
}
