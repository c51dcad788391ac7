//! docs/events.md, from the table of events.

use std::fmt::Write as _;

use super::super::event::{Event, EventSpan};
use super::super::fields::{FieldKind, WORDS};

#[test]
fn the_document_is_current() {
    crate::generated::check("docs/events.md", &markdown());
}

/// docs/events.md, as it has to be.
fn markdown() -> String {
    let mut text = String::from(BEGINNING);
    text += "## Events\n\n| event | fields | meaning | stability | frequency |\n|---|---|---|---|---|\n";
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
            row.frequency.name()
        );
    }
    text += "\n## Fields\n\n| field | kind | meaning |\n|---|---|---|\n";
    for word in WORDS {
        let _ = writeln!(text, "| `{}` | {} | {} |", word.name, unit(word.kind), word.meaning);
    }
    text += "\n## Spans\n\n";
    let spans = Event::ALL.iter().map(|event| event.description());
    let begins = spans.filter(|row| matches!(row.span, EventSpan::Begin));
    for row in begins {
        let _ = writeln!(
            text,
            "`{}` and its reply may be on different threads; they are matched by `{}`.",
            row.name, row.fields[0].name
        );
    }
    text += END;
    text += "\n## Linux tracepoints without a counterpart\n\n| tracepoint | why |\n|---|---|\n";
    for (tracepoint, why) in WITHOUT_COUNTERPART {
        let _ = writeln!(text, "| {tracepoint} | {why} |");
    }
    text
}

fn unit(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Number => "number",
        FieldKind::Hex => "number, in hexadecimal",
        FieldKind::Octal => "number, in octal",
        FieldKind::Bytes => "bytes",
        FieldKind::Nanoseconds => "nanoseconds",
        FieldKind::Errno => "0 or a negative errno",
        FieldKind::Status => "NFSv3 or NFSv4 status",
        FieldKind::FileType => "file type, as in the upper bits of a mode",
        FieldKind::Text => "text, at most 255 bytes",
    }
}

const BEGINNING: &str = "# Events

This page is generated from the table of events by a test, which also keeps the two equal. Names and fields are those of
Linux's `nfs:`, `sunrpc:` and `nfsd:` tracepoints where these exist. *Stable* events keep their name and fields (more fields may be
added at the end); *draft* events may change in any version.

The frequency is the rate at which an event can occur: *rare* events report faults, and the begin and end of mounts and connections; *request* events occur once or a few times for each
message on the wire; *operation* events occur once for each operation of a program, call that a server executes, or object in a reply.

There are three ways to see events:

* live, or recorded, with `curt trace MOUNT` or `curt trace --server PID` (see `curt trace --help`);
* as USDT probes of the provider `curt` in the program's file: `bpftrace -p PID -e 'usdt:/usr/local/bin/curt:curt:nfs_lookup_exit { printf(\"%s %d\\n\", str(arg1), arg3); }'`.
  The arguments are the fields in order, 64 bits each; a text is passed as the address of a zero-terminated string. `readelf -n` lists the probes;
* in the ring, a file that a process leaves behind when it is killed or fails, or as a copy when a thread panics. `curt trace report` lists the rings
  that exist. A process that ends normally, or that could not start, leaves no ring.

";

const END: &str = "
Events that enter a span (`…_enter`, `nfsd_call`, `nfs_readdir_cache_fill`) and those that leave it (`…_exit`, `nfsd_reply`, `…_done`) are on the same thread, and
spans are properly nested.
";

/// Tracepoints of Linux's client that have no row here, and why.
const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    (
        "`nfs4:*`: `nfs4_open_*`, `nfs4_close`, `nfs4_delegreturn`, `nfs4_cb_recall`, `nfs4_cb_notify_lock`, `nfs4_state_mgr`, `nfs4_sequence`, `nfs4_readdir` and the others",
        "a compound is `rpc_call` and `rpc_reply`; delegations are `nfs_delegation`; opens, sessions and recovery have no events, only the counters of `curt stat`. For `nfs4_readdir` see `nfs_readdir_cache_fill`",
    ),
    (
        "`nfs4_get_lock`, `nfs4_set_lock`, `nfs4_unlock`, `nlmclnt_*`",
        "`nfs_lock_state`, `nfs_lock_done`, `nfs_unlock_done` and `nfs_lock_lost`; the requests are `rpc_call`, those of NLM with the numbers of program and procedure",
    ),
    ("`nfs_set_inode_stale`", "covered by `nfs_set_cache_invalid` with a stale handle as its reason"),
    (
        "`nfs_aop_*`, `nfs_vm_*`, folios and pages of `nfs_size_truncate_folio`, `nfs_try_to_update_request` and the like",
        "the page cache belongs to the kernel; what reaches a mount appears as `nfs_read_*` and `nfs_write_*`",
    ),
    (
        "`nfs_direct_*`, `nfs_local_*`, `nfs_fh_to_dentry`",
        "direct reads and writes appear as `nfs_initiate_read` and `nfs_initiate_write`; there is no local bypass, and mounts are not re-exported",
    ),
    ("`nfs_xdr_bad_filehandle`", "any reply that cannot be decoded is `rpc_malformed`"),
    (
        "`nfs_write_error`, `nfs_comp_error`, `nfs_commit_error`",
        "covered by `nfs_pgio_error` and the errors of `nfs_writeback_done` and `nfs_commit_done`",
    ),
    (
        "the fields `flags` of look-ups and `fmode`",
        "they are internal to the kernel, and FUSE does not pass them on",
    ),
];
