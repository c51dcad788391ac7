//! Pictures of the latency tables of BENCHMARKS.md, as SVG: the servers', and the mount's, which
//! has longer times, on a scale of its own.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::tables::{ANY_PROCESSOR, ONE_PROCESSOR};

/// A picture.
struct Picture {
    file: &'static str,
    /// The part of the document that it shows.
    shown: fn(&str) -> Result<BarChart>,
}

const PICTURES: [Picture; 2] = [
    Picture { file: "docs/latency.svg", shown: servers },
    Picture { file: "docs/latency-mount.svg", shown: mount },
];

/// Width of the picture, of the names at its left, and of the values at its right, in pixels.
const WIDTH: f64 = 800.0;
const NAMES_WIDTH: f64 = 140.0;
const VALUES_WIDTH: f64 = 70.0;
/// Height of a bar, of the space between operations, and of the title with the legend.
const BAR: f64 = 13.0;
const GAP: f64 = 10.0;
const HEAD: f64 = 60.0;
/// The colours of the bars.
const COLOURS: [&str; 3] = ["#8c8c8c", "#4c72b0", "#c44e52"];

/// Horizontal bars, a group for each operation.
struct BarChart {
    title: &'static str,
    /// The names of the bars of a group.
    series: &'static [&'static str],
    groups: Vec<BarGroup>,
}

struct BarGroup {
    operation: String,
    /// Times in µs, one for each of the series.
    values: Vec<f64>,
}

/// Draws all pictures from the tables of the document.
///
/// # Errors
/// A table is missing, or a picture cannot be written.
pub(super) fn write(root: &Path) -> Result<()> {
    let document = std::fs::read_to_string(root.join("BENCHMARKS.md"))?;
    for Picture { file, shown } in PICTURES {
        let svg = shown(&document).with_context(|| format!("the table for {file}"))?.svg();
        std::fs::write(root.join(file), svg).with_context(|| file.to_owned())?;
    }
    Ok(())
}

fn servers(document: &str) -> Result<BarChart> {
    let title = "One operation at a time, client and server on one processor";
    let series = &["floor", "Curt", "Ganesha"];
    let columns = [(ONE_PROCESSOR, "floor"), (ONE_PROCESSOR, "Curt"), (ONE_PROCESSOR, "Ganesha")];
    Ok(BarChart { title, series, groups: groups(document, &columns)? })
}

fn mount(document: &str) -> Result<BarChart> {
    let title = "One operation at a time through a mount of Curt's server";
    let series = &["on one processor", "on any processor"];
    let columns = [(ONE_PROCESSOR, "through a mount"), (ANY_PROCESSOR, "through a mount")];
    Ok(BarChart { title, series, groups: groups(document, &columns)? })
}

/// The operations, with their values in these columns: the title of each one's table, and its
/// heading.
fn groups(document: &str, columns: &[(&str, &str)]) -> Result<Vec<BarGroup>> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for (table, heading) in columns {
        let cells = column(document, table, heading)?;
        if groups.is_empty() {
            let empty = |(operation, _): &(String, f64)| BarGroup {
                operation: operation.clone(),
                values: Vec::new(),
            };
            groups = cells.iter().map(empty).collect();
        }
        for group in &mut groups {
            let cell = cells.iter().find(|(operation, _)| *operation == group.operation);
            let (_, value) = cell.with_context(|| format!("{} is not in {table:?}", group.operation))?;
            group.values.push(*value);
        }
    }
    Ok(groups)
}

/// A column of a table: the operation of each row, and the value.
fn column(document: &str, table: &str, heading: &str) -> Result<Vec<(String, f64)>> {
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let (_, text) =
        document.split_once(&format!("{table}:\n\n")).with_context(|| format!("there is no {table:?}"))?;
    let mut lines = text.lines().take_while(|line| line.starts_with('|'));
    let heads = cells(lines.next().unwrap_or_default());
    let place =
        heads.iter().position(|head| head == heading).with_context(|| format!("there is no {heading:?}"))?;
    let value = |line: &str| {
        let cells = cells(line);
        let (operation, value) = (cells.get(1), cells.get(place));
        let (operation, value) = operation.zip(value).with_context(|| format!("a short row: {line}"))?;
        Ok((operation.clone(), value.parse().with_context(|| format!("not a number: {value}"))?))
    };
    lines.skip(1).map(value).collect()
}

impl BarChart {
    fn svg(&self) -> String {
        let most = self.groups.iter().flat_map(|group| &group.values).copied().fold(1.0, f64::max);
        let scale = (WIDTH - NAMES_WIDTH - VALUES_WIDTH) / most;
        let group_height = BAR * self.series.len() as f64 + GAP;
        let height = HEAD + group_height * self.groups.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"10\" y=\"20\" font-size=\"15\">{} (µs)</text>\n",
            self.title
        );
        for (place, (name, colour)) in self.series.iter().zip(COLOURS).enumerate() {
            let x = NAMES_WIDTH + 160.0 * place as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"33\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"43\">{name}</text>",
                x + 18.0
            );
        }
        for (place, group) in self.groups.iter().enumerate() {
            let top = HEAD + group_height * place as f64;
            let middle = top + (group_height - GAP) / 2.0 + 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                NAMES_WIDTH - 8.0,
                group.operation
            );
            for (bar, (value, colour)) in group.values.iter().zip(COLOURS).enumerate() {
                let (y, width) = (top + BAR * bar as f64, value * scale);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{NAMES_WIDTH}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                     <text x=\"{:.1}\" y=\"{}\" font-size=\"11\">{value:.1}</text>",
                    BAR - 1.0,
                    NAMES_WIDTH + width + 5.0,
                    y + 10.0
                );
            }
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn the_pictures_show_the_tables_of_the_document() {
        let root = crate::root();
        let document = std::fs::read_to_string(root.join("BENCHMARKS.md")).unwrap();
        for Picture { file, shown } in PICTURES {
            let drawn = shown(&document).unwrap().svg();
            let written = std::fs::read_to_string(root.join(file)).unwrap();
            assert!(drawn == written, "{file} is not from this table; cargo xtask compare pictures draws it");
        }
    }

    #[test]
    fn each_picture_has_its_own_scale() {
        let table = |title, rows: &str| format!("{title}:\n\n| operation | Curt |\n|---|---|\n{rows}\n");
        let document = table("small", "| A | 10.0 |\n| B | 5.0 |\n") + &table("large", "| A | 100.0 |\n");
        let chart = |columns: &[(&str, &str)]| BarChart {
            title: "t",
            series: &["Curt"],
            groups: groups(&document, columns).unwrap(),
        };
        let widest = format!("width=\"{:.1}\"", WIDTH - NAMES_WIDTH - VALUES_WIDTH);
        for table in ["small", "large"] {
            assert_eq!(chart(&[(table, "Curt")]).svg().matches(&widest).count(), 1, "{table}");
        }
        assert!(groups(&document, &[("small", "Curt"), ("large", "Curt")]).is_err(), "B is in one only");
        assert!(column(&document, "small", "Ganesha").is_err());
        assert!(column(&document, "none", "Curt").is_err());
    }
}
