//! docs/explain.md, from the tables of causes and rules.

use std::fmt::Write as _;

use super::super::{Cause, Rule};

#[test]
fn the_document_is_current() {
    crate::generated::check("docs/explain.md", &markdown());
}

const INTRODUCTION: &str = "# Explanations

`curt explain COMMAND…` runs a command. It shows the cause of each request that the command caused on Curt mounts, the rule that saved each request
that was not sent, and the requests that Linux's own client would have sent. This page is generated from the tables of
causes and rules by a test, which also keeps the two equal.

    curt explain ls -l /mnt
    curt explain --expand open-check make -C /mnt          # with the paths of this cause; `all`: of every cause
    curt explain -o nocto,actimeo=600 --json make -C /mnt  # compared with a Linux client with these options

## How exact the numbers are

| number | what it is |
|---|---|
| sent | **Exact.** Each request has one cause, and the rows add up to what `curt stat` counts for the mount between the command's begin and end. Requests caused by other processes meanwhile are shown separately. |
| saved | **Exact decisions, not requests of another client.** Each is a point at which a request would have been sent without a rule. If two rules apply, the one that was checked first is counted. A request that was not considered because an earlier one was saved is not counted. |
| Linux | **A model**: what Linux 6.1's NFSv3 client would send for the same operations at the same times, whatever the version of the mount, if it had mounted when the command began. Tests keep it within 5 % of a real kernel's counts ([how, and what it leaves out](decisions/explaining.md)). |
| by path, by process | Exact for listed paths and processes. The smaller ones are combined into one sum, so that the totals add up. |

A process belongs to the command if `curt explain` is among its ancestors; it adopts processes that lose their parent. When the command has ended, `curt explain`
waits until all operations of the command are done, in the kernel, in the mount and at the server, and all written data have been sent. It waits for at most
8 s, and reports if that was not enough (`unfinished`). Processes that the command leaves behind continue without being explained, which is reported too; with
`--wait` it waits until they have ended.

While a command is explained the kernel caches no names and attributes of the mounts, so that each operation is seen; `curt explain` starts the command when
the names that it had cached have expired (`kernelnames=`) and the targets of symbolic links are dropped. Operations then take longer, but the same requests are
sent, with one exception: LOOKUPs of names that a program may be about to create. Such a name is looked up repeatedly without being used, or is looked up although the kernel has it cached.
While a command is explained, every use is seen and the kernel caches no names, so some of these LOOKUPs are not sent.
";

/// docs/explain.md.
fn markdown() -> String {
    let mut text = format!("{INTRODUCTION}\n## Causes\n\n| cause | meaning |\n|---|---|\n");
    for cause in Cause::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {} |", cause.name(), cause.meaning());
    }
    text += "\n## Rules\n\n| rule | cause of the request saved | meaning |\n|---|---|---|\n";
    for rule in Rule::ALL {
        let (name, cause) = (rule.name(), rule.cause().name());
        let _ = writeln!(text, "| {name} | `{cause}` | {} |", rule.meaning());
    }
    text
}
