//! Checks of generated tables in documents: their headers are those of the generating source.

use super::{Complaints, RepositoryFile};

/// A document, the name of its markers, and the source with the headers of the tables between them.
const WRITTEN: [(&str, &str, &str); 2] = [
    ("BENCHMARKS.md", "latency", "xtask/src/compare/tables.rs"),
    ("BENCHMARKS.md", "latency-summary", "xtask/src/compare/tables.rs"),
];

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    let find = |name: &str| files.iter().find(|file| file.path.as_os_str() == name);
    for (document, marker, source) in WRITTEN {
        let (Some(document), Some(source)) = (find(document), find(source)) else {
            continue;
        };
        check_headings(document, marker, &source.text, complaints);
    }
}

/// A header is the line above the rule.
fn check_headings(document: &RepositoryFile, marker: &str, source: &str, complaints: &mut Complaints) {
    let (begin, end) = (
        format!("<!-- {marker}: begin -->"),
        format!("<!-- {marker}: end -->"),
    );
    let lines: Vec<_> = document.text.lines().enumerate().collect();
    let between = lines
        .iter()
        .skip_while(|(_, line)| *line != begin)
        .take_while(|(_, line)| *line != end)
        .copied();
    let between: Vec<_> = between.collect();
    if between.is_empty() {
        complaints.add(&document.path, 1, format!("there is no {begin}"));
    }
    for pair in between.windows(2) {
        let (number, heading) = pair[0];
        if pair[1].1.starts_with("|---") && !source.contains(heading) {
            complaints.add(
                &document.path,
                number + 1,
                "no program writes a table with this heading any more",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_headings_are_reported() {
        let document = |text: &str| RepositoryFile {
            path: "x.md".into(),
            text: text.into(),
        };
        let text = "| old |\n|---|\n<!-- t: begin -->\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| a | c |\n|---|---|\n<!-- t: end -->\n| b |\n|---|\n";
        let source = "format!(\"| a | b |\\n\\\n         |---|---|\\n\")";
        let mut complaints = Complaints::default();
        check_headings(&document(text), "t", source, &mut complaints);
        assert_eq!(
            complaints.0,
            ["x.md:8: no program writes a table with this heading any more"]
        );
        check_headings(&document(text), "u", source, &mut complaints);
        assert_eq!(complaints.0.len(), 2);
    }
}
