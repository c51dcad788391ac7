//! The words of explanations as text: for a terminal and for docs/explain.md.

use std::fmt::Write as _;

use super::{Cause, Rule};

/// What docs/explain.md says besides the tables.
const INTRODUCTION: &str = "# Explanations

This page is made from the tables of causes and rules (`curt explain --list --markdown`); a test holds it to them. `curt explain COMMAND…` runs a command and says of each request that
it caused on Curt mounts why it was sent (the cause), of each that was not sent what spared it (the rule), and what Linux's own client would have sent.

    curt explain ls -l /mnt
    curt explain --expand open-check make -C /mnt          # with the paths of a cause, or of `all`
    curt explain -o nocto,actimeo=600 --json make -C /mnt  # beside a Linux client with these options

## What its numbers promise

| number | what it is |
|---|---|
| sent | **Exact.** Each request has one cause, and the rows add up to what `curt stat` counts of the mount between the command's begin and end; what other processes caused meanwhile is told apart. It is counted where `curt stat` counts. |
| spared | **Exact decisions, not requests of another client.** Each is one point at which a request would have been sent but for a rule. Of two rules that hold at once the first that was looked at is counted. A request that was never thought of because an earlier one was spared is not counted. |
| Linux | **A model**: what Linux 6.1 would send by its rules for the same operations, at the times at which they came here, if it had mounted when the command began. It is held to counts of a real kernel, within 5 % ([how, and what it leaves out](decisions/explaining.md)). |
| by path, by process | Exact for those that are told; the smaller ones are a sum, so that all add up. |

A process belongs to the command if `curt explain` is among its ancestors, which takes in those that lose their parent. It ends when the command has ended: it then waits until nothing that the command
began is under way any more, in the kernel, in the mount or behind it, and what was written is sent, for at most 8 s, and says so (`unfinished`) if that was not enough. Processes that
the command leaves behind run on unexplained, which is said, too; `--wait` goes on until they have ended.

While a command is explained its mounts promise the kernel nothing, so that each operation is seen; it takes longer, and what is sent stays
the same, but for the LOOKUP of a name that the kernel keeps and is about to make or replace: it cannot be told from others meanwhile.
";

/// One line for each cause and rule: name and meaning.
#[must_use]
pub fn list() -> String {
    let mut text = String::from("Causes:\n");
    for cause in Cause::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<20} {}", cause.name(), cause.meaning());
    }
    text += "Rules, with what they spare:\n";
    for rule in Rule::ALL {
        let _ = writeln!(
            text,
            "  {:<20} {:<20} {}",
            rule.name(),
            rule.cause().name(),
            rule.meaning()
        );
    }
    text
}

/// docs/explain.md.
#[must_use]
pub fn markdown() -> String {
    let mut text = format!("{INTRODUCTION}\n## Causes\n\n| cause | meaning |\n|---|---|\n");
    for cause in Cause::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {} |", cause.name(), cause.meaning());
    }
    text += "\n## Rules\n\n| rule | what it spares | meaning |\n|---|---|---|\n";
    for rule in Rule::ALL {
        let (name, cause) = (rule.name(), rule.cause().name());
        let _ = writeln!(text, "| {name} | `{cause}` | {} |", rule.meaning());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
        let written = std::fs::read_to_string(path).expect("docs/explain.md");
        assert!(
            written == markdown(),
            "docs/explain.md is not current: curt explain --list --markdown > docs/explain.md"
        );
    }

    #[test]
    fn every_word_is_listed() {
        let list = list();
        for name in Cause::ALL
            .iter()
            .map(|cause| cause.name())
            .chain(Rule::ALL.iter().map(|rule| rule.name()))
        {
            assert!(list.contains(&format!("  {name} ")), "{name}");
        }
    }
}
