//! The table of events as text.

use std::fmt::Write as _;

use super::event::Event;

/// One line for each of these events: name, fields and meaning.
#[must_use]
pub fn list(events: &[Event]) -> String {
    let width = events.iter().map(|event| event.name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for event in events {
        let row = event.description();
        let fields: Vec<_> = row.fields.iter().map(|field| field.name).collect();
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "{:<width$}  {}\n{:<width$}    {}", row.name, row.meaning, "", fields.join(" "));
    }
    text
}

#[cfg(test)]
mod markdown;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_event() {
        let text = list(Event::ALL);
        assert_eq!(text.lines().count(), 2 * Event::COUNT);
    }
}
