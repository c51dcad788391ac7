//! The table of events as text: for a terminal and for docs/events.md.

use std::fmt::Write as _;

use super::event::{Event, Frequency, Span, Stability};
use super::fields::{Kind, WORDS};

impl Stability {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Draft => "draft",
        }
    }
}

impl Frequency {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rare => "rare",
            Self::Request => "request",
            Self::Operation => "operation",
        }
    }
}

/// One line for each of these events: name, fields and meaning.
#[must_use]
pub fn list(events: &[Event]) -> String {
    let width = events
        .iter()
        .map(|event| event.name().len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for event in events {
        let row = event.description();
        let fields: Vec<_> = row.fields.iter().map(|field| field.name).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<width$}  {}\n{:<width$}    {}",
            row.name,
            row.meaning,
            "",
            fields.join(" ")
        );
    }
    text
}

/// docs/events.md.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(BEGINNING);
    text += "## Events\n\n| event | fields | meaning | stability | at most once for each |\n|---|---|---|---|---|\n";
    for event in Event::ALL {
        let row = event.description();
        let fields: Vec<_> = row.fields.iter().map(|field| field.name).collect();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            row.name,
            fields.join(", "),
            row.meaning,
            row.stability.name(),
            frequency(row.frequency)
        );
    }
    text += "\n## Fields\n\n| field | kind | meaning |\n|---|---|---|\n";
    for word in WORDS {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            word.name,
            unit(word.kind),
            word.meaning
        );
    }
    text += "\n## Spans\n\n";
    let spans = Event::ALL.iter().map(|event| event.description());
    let begins = spans.filter(|row| matches!(row.span, Span::Begin));
    for row in begins {
        let _ = writeln!(
            text,
            "`{}` and its reply may be on different threads; they find each other by `{}`.",
            row.name, row.fields[0].name
        );
    }
    text += END;
    text += "\n## What Linux traces and Curt does not\n\n| tracepoint | why |\n|---|---|\n";
    for (tracepoint, why) in WITHOUT_COUNTERPART {
        let _ = writeln!(text, "| {tracepoint} | {why} |");
    }
    text
}

fn frequency(frequency: Frequency) -> &'static str {
    match frequency {
        Frequency::Rare => "trouble, beginning or end",
        Frequency::Request => "message on the wire, or some",
        Frequency::Operation => {
            "operation of a program, call that is executed, or object that a reply tells of"
        }
    }
}

fn unit(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "number",
        Kind::Hex => "number, shown in hexadecimal",
        Kind::Octal => "number, shown in octal",
        Kind::Bytes => "bytes",
        Kind::Nanoseconds => "nanoseconds",
        Kind::Errno => "0 or a negative errno",
        Kind::Status => "status of NFSv3",
        Kind::FileType => "type of a file, as in the upper bits of its mode",
        Kind::Text => "text, at most 255 bytes",
    }
}

const BEGINNING: &str = "# Events

This page is made from the table of events (`curt trace --list --markdown`); a test holds it to it. Names and fields are those of
Linux's `nfs:`, `sunrpc:` and `nfsd:` tracepoints where there is such a one. *Stable* events keep name and fields (fields may be
added behind the others); *draft* ones may change with any version.

Each event is seen in three ways:

* live, or recorded, by `curt trace MOUNT` or `curt trace --server PID` (see `curt trace --help`);
* as a probe (USDT) of the provider `curt` in the program's file: `bpftrace -p PID -e 'usdt:/usr/local/bin/curt:curt:nfs_lookup_exit { printf(\"%s %d\\n\", str(arg1), arg3); }'`.
  The arguments are the fields in their order, each of 64 bits; a text is the address of its bytes, which end with a zero. `readelf -n` lists the probes;
* in the ring, a file that a process leaves behind when it is killed or fails, and a copy of it when a thread panics: `curt trace report` lists those
  that are left. A process that ends as it was asked to leaves none, and neither does one that could not begin.

";

const END: &str = "
What is entered (`…_enter`, `nfsd_call`, `nfs_readdir_cache_fill`) is left (`…_exit`, `nfsd_reply`, `…_done`) on the same thread, the inner before the outer.
";

/// Tracepoints of Linux's client that have no row here, and why.
const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    (
        "`nfs4:*`: `nfs4_open_*`, `nfs4_close`, `nfs4_delegreturn`, `nfs4_cb_recall`, `nfs4_cb_notify_lock`, `nfs4_state_mgr`, `nfs4_sequence`, `nfs4_readdir` and the others",
        "Curt speaks NFSv3: there are no opens, delegations, callbacks, sessions or state at the server. What `nfs4_readdir` tells is in `nfs_readdir_cache_fill`",
    ),
    (
        "`nfs4_get_lock`, `nfs4_set_lock`, `nfs4_unlock`, `nlmclnt_*`",
        "locks are local or refused: no server is asked for one",
    ),
    (
        "`nfs_set_inode_stale`",
        "`nfs_set_cache_invalid`, its reason being a stale handle",
    ),
    (
        "`nfs_aop_*`, `nfs_vm_*`, folios and pages of `nfs_size_truncate_folio`, `nfs_try_to_update_request` and the like",
        "the page cache is the kernel's own; what of it reaches a mount is `nfs_read_*` and `nfs_write_*`",
    ),
    (
        "`nfs_direct_*`, `nfs_local_*`, `nfs_fh_to_dentry`",
        "reads and writes past all caches are `nfs_initiate_read` and `nfs_initiate_write` like others; there is no way around the wire, and a mount is not exported again",
    ),
    (
        "`nfs_xdr_bad_filehandle`",
        "a reply that makes no sense is `rpc_malformed`, whatever in it does not",
    ),
    (
        "`nfs_write_error`, `nfs_comp_error`, `nfs_commit_error`",
        "`nfs_pgio_error`, and the errors of `nfs_writeback_done` and `nfs_commit_done`",
    ),
    (
        "the fields `flags` of look-ups and `fmode`",
        "they are the kernel's own, and FUSE does not tell them",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
        let written = std::fs::read_to_string(path).expect("docs/events.md");
        assert!(
            written == markdown(),
            "docs/events.md is not current: curt trace --list --markdown > docs/events.md"
        );
    }

    #[test]
    fn the_list_has_every_event() {
        let text = list(Event::ALL);
        assert_eq!(text.lines().count(), 2 * Event::COUNT);
    }
}
