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
    text
}

fn frequency(frequency: Frequency) -> &'static str {
    match frequency {
        Frequency::Rare => "trouble, beginning or end",
        Frequency::Request => "message on the wire, or some",
        Frequency::Operation => "operation of a program, or call that is executed",
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
* in the ring, a file that a process leaves behind when it is killed or fails: `curt trace report` lists those that are left.

";

const END: &str = "
What is entered (`…_enter`, `nfsd_call`, `nfs_readdir_cache_fill`) is left (`…_exit`, `nfsd_reply`, `…_done`) on the same thread, the inner before the outer.
";

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
