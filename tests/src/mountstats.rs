//! A strict parser of the kernel's mountstats format, with the rules of its other parsers
//! (mountstats(8) of nfs-utils; Prometheus' procfs, which node_exporter uses): words at their
//! positions, the number of fields of each line, integers.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

/// Number of fields of lines with a fixed number.
const EVENTS: usize = 27;
const BYTES: usize = 8;
const TRANSPORT: usize = 13;
const PER_OPERATION: usize = 9;

/// The text of one mount.
#[derive(Debug, Default)]
pub struct ParsedMountstats {
    /// `server:/path`.
    pub device: String,
    /// The mount point.
    pub mount_point: String,
    /// `opts:` by name.
    pub options: BTreeMap<String, String>,
    /// `age:` in seconds.
    pub age: u64,
    /// `events:`.
    pub events: Vec<u64>,
    /// `bytes:`.
    pub bytes: Vec<u64>,
    /// `xprt: tcp`.
    pub transport: Vec<u64>,
    /// The nine numbers of each operation.
    pub operations: BTreeMap<String, Vec<u64>>,
}

/// Parses a text that lists only NFS mounts.
///
/// # Errors
/// A line is invalid.
pub fn parse(text: &str) -> Result<Vec<ParsedMountstats>> {
    let mut lines = text.lines();
    let mut mounts = Vec::new();
    while let Some(line) = lines.next() {
        mounts.push(mount(line, &mut lines).with_context(|| line.to_owned())?);
    }
    ensure!(text.ends_with('\n'), "the last line does not end");
    Ok(mounts)
}

fn mount<'a>(device: &str, lines: &mut impl Iterator<Item = &'a str>) -> Result<ParsedMountstats> {
    let words: Vec<&str> = device.split_whitespace().collect();
    ensure!(
        words.len() == 9 && words[2..4] == ["mounted", "on"] && words[5..7] == ["with", "fstype"],
        "it is no device line"
    );
    ensure!(
        words[0] == "device" && words[7] == "nfs" && words[8] == "statvers=1.1",
        "it is no NFS mount of statvers 1.1"
    );
    let mut mount = ParsedMountstats {
        device: words[1].to_owned(),
        mount_point: words[4].to_owned(),
        ..ParsedMountstats::default()
    };
    let mut field = |name: &str| -> Result<Vec<String>> {
        let line = lines.next().context("it ends too early")?;
        ensure!(line.starts_with('\t'), "{line:?} does not begin with a tab");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ensure!(words.first().is_some_and(|word| word == name), "{line:?} is not {name}");
        Ok(words[1..].to_vec())
    };
    let options = field("opts:")?;
    ensure!(options.len() == 1, "opts: {options:?}");
    for option in options[0].split(',') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        mount.options.insert(name.to_owned(), value.to_owned());
    }
    mount.age = numbers(&field("age:")?, 1)?[0];
    ensure!(field("caps:")?[0].starts_with("caps=0x"), "no caps=");
    ensure!(field("sec:")?[0].starts_with("flavor="), "no flavor=");
    mount.events = numbers(&field("events:")?, EVENTS)?;
    mount.bytes = numbers(&field("bytes:")?, BYTES)?;
    let rpc = field("RPC")?;
    ensure!(rpc[..5] == ["iostats", "version:", "1.1", "p/v:", "100003/3"], "{rpc:?}");
    let transport = field("xprt:")?;
    ensure!(transport[0] == "tcp", "{transport:?}");
    mount.transport = numbers(&transport[1..], TRANSPORT)?;
    ensure!(field("per-op")? == ["statistics"], "no per-op statistics");
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let name = words[0].strip_suffix(':').with_context(|| line.to_owned())?;
        let known = mount.operations.insert(name.to_owned(), numbers(&words[1..], PER_OPERATION)?);
        ensure!(known.is_none(), "{name} stands there twice");
    }
    ensure!(mount.operations.len() == 22, "NFSv3 has 22 procedures");
    Ok(mount)
}

fn numbers(words: &[String], count: usize) -> Result<Vec<u64>> {
    ensure!(words.len() == count, "{count} numbers were expected: {words:?}");
    let parsed = words.iter().map(|word| word.parse().with_context(|| word.clone()));
    parsed.collect()
}
