//! docs/nfs4.md, from the tables of operations and attributes.

use std::fmt::Write as _;

use curt_proto::nfs4::{Attribute, HandlesNeeded, Nfs4Operation, Position};

const HEAD: &str = "# NFSv4

This page is generated from the tables of operations and attributes that the server uses; a test compares the page with them. Minor versions 1 and 2
are served. An operation that the server does not have, and those of NFSv4.0 alone, are answered with `NFS4ERR_NOTSUPP`; one of a later minor
version than the request's, and an unknown number, with `NFS4ERR_OP_ILLEGAL`. [Conformance](nfs4-conformance.md) shows what the server answers.

";

const OPERATIONS: &str = "## Operations

*Filehandles*: the filehandles that the operation needs; without them it fails with `NFS4ERR_NOFILEHANDLE`. *Place*: where it may stand in a compound. *Effect*: whether it
may wait (for a disk or a client), and whether it changes files or state.

| number | operation | minor versions | filehandles | place | effect | supported |
|---|---|---|---|---|---|---|
";

const ATTRIBUTES: &str = "
## Attributes

GETATTR and READDIR leave out attributes that are not supported; SETATTR, CREATE, OPEN, VERIFY and NVERIFY answer `NFS4ERR_ATTRNOTSUPP`. An attribute
that cannot be read, or cannot be set, is answered with `NFS4ERR_INVAL`. Owners and groups are decimal numbers. The change attribute is the time
of the last change in nanoseconds.

| number | attribute | since minor version | use | supported |
|---|---|---|---|---|
";

fn supported(reason: Option<&str>) -> String {
    reason.map_or_else(|| "yes".into(), |reason| format!("no: {reason}"))
}

fn markdown() -> String {
    let mut page = format!("{HEAD}{OPERATIONS}");
    for operation in Nfs4Operation::ALL {
        let properties = operation.properties();
        let (first, last) = (properties.first_minor, properties.last_minor);
        let versions = if first == last { first.to_string() } else { format!("{first} to {last}") };
        let handles = match properties.handles {
            HandlesNeeded::Neither => "",
            HandlesNeeded::Current => "current",
            HandlesNeeded::Saved => "saved",
            HandlesNeeded::Both => "current and saved",
        };
        let place = match properties.position {
            Position::InSession => "after SEQUENCE",
            Position::First => "first",
            Position::InSessionOrAlone => "after SEQUENCE, or alone",
            Position::Alone => "alone",
        };
        let effect = match (properties.may_block, properties.changes) {
            (true, true) => "waits, changes",
            (true, false) => "waits",
            (false, true) => "changes",
            (false, false) => "",
        };
        let supported = match operation {
            Nfs4Operation::Illegal => "stands in the reply for unknown operations".into(),
            Nfs4Operation::SetSsv => "answered; no client can have SP4_SSV".into(),
            _ => supported(properties.unsupported),
        };
        let number = operation.number();
        writeln!(
            page,
            "| {number} | {operation} | {versions} | {handles} | {place} | {effect} | {supported} |"
        )
        .expect("a string takes it");
    }
    page.push_str(ATTRIBUTES);
    let mut attributes = Attribute::ALL.to_vec();
    attributes.sort_unstable();
    for attribute in attributes {
        let (number, name, since) = (attribute.number(), attribute.name(), attribute.first_minor());
        let allows = match (attribute.allows().readable(), attribute.allows().settable()) {
            (true, false) => "read",
            (false, true) => "set",
            _ => "read, set",
        };
        let supported = supported(attribute.unsupported());
        writeln!(page, "| {number} | {name} | {since} | {allows} | {supported} |")
            .expect("a string takes it");
    }
    page
}

#[test]
fn the_page_is_that_of_the_tables() {
    crate::generated::check("docs/nfs4.md", &markdown());
}
