//! The tables of causes and rules as text.

use std::fmt::Write as _;

use super::{Cause, Rule};

/// One line for each cause and rule: name and meaning.
#[must_use]
pub fn list() -> String {
    let mut text = String::from("Causes:\n");
    for cause in Cause::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<20} {}", cause.name(), cause.meaning());
    }
    text += "Rules, with the cause of the request saved:\n";
    for rule in Rule::ALL {
        let _ = writeln!(text, "  {:<20} {:<20} {}", rule.name(), rule.cause().name(), rule.meaning());
    }
    text
}

#[cfg(test)]
mod markdown;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_listed() {
        let list = list();
        for name in
            Cause::ALL.iter().map(|cause| cause.name()).chain(Rule::ALL.iter().map(|rule| rule.name()))
        {
            assert!(list.contains(&format!("  {name} ")), "{name}");
        }
    }
}
