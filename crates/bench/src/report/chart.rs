//! Runs as stacked bars by operation, in SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use curt_observe::Operation;

use super::ComparisonColumn;

/// The picture's size in pixels.
const SIZE: (u32, u32) = (1200, 540);
/// The width of the legend in bars: it is beside them and hides none of their numbers.
const LEGEND_BARS: u32 = 1;
/// Operations of every version that share a colour, under one label.
struct ColouredOperations {
    label: &'static str,
    is_meant: fn(Operation) -> bool,
    colour: RGBColor,
}

impl ColouredOperations {
    const fn new(label: &'static str, is_meant: fn(Operation) -> bool, colour: RGBColor) -> Self {
        Self { label, is_meant, colour }
    }

    fn requests(&self, column: &ComparisonColumn) -> u64 {
        column.rpc.of_all(self.is_meant)
    }
}

/// All operations: each has one of these colours.
const COLOURS: [ColouredOperations; 6] = [
    ColouredOperations::new("GETATTR", Operation::is_getattr, RGBColor(0x4c, 0x72, 0xb0)),
    ColouredOperations::new("LOOKUP", Operation::is_lookup, RGBColor(0x55, 0xa8, 0x68)),
    ColouredOperations::new("ACCESS", Operation::is_access, RGBColor(0xc4, 0x4e, 0x52)),
    ColouredOperations::new("READ", Operation::is_read, RGBColor(0x81, 0x72, 0xb2)),
    ColouredOperations::new("READDIRPLUS", Operation::is_listing_with_attributes, RGBColor(0xcc, 0xb9, 0x74)),
    ColouredOperations::new("others", is_other, RGBColor(0x8c, 0x8c, 0x8c)),
];

/// Whether an operation has no colour of its own.
const fn is_other(operation: Operation) -> bool {
    !operation.is_getattr()
        && !operation.is_lookup()
        && !operation.is_access()
        && !operation.is_read()
        && !operation.is_listing_with_attributes()
}

/// Why the chart could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(pub(super) String);

/// The requests of each run as a stacked bar, as an SVG file.
///
/// # Errors
/// There is no run, or those of the drawing library.
pub fn bars(title: &str, columns: &[ComparisonColumn]) -> Result<String, ChartError> {
    let most =
        columns.iter().map(|column| column.rpc.total()).max().ok_or_else(|| ChartError("no run".into()))?;
    let mut svg = String::new();
    draw(title, columns, most.max(1), &mut svg).map_err(|error| ChartError(error.to_string()))?;
    Ok(svg)
}

fn draw(
    title: &str,
    columns: &[ComparisonColumn],
    most: u64,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let width = u32::try_from(columns.len())? + LEGEND_BARS;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..f64::from(width), 0..most + most / 8)?;
    let name = |x: &f64| columns.get(index_at(*x)).map_or_else(String::new, |column| column.title.clone());
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(usize::try_from(width)? * 2 + 1)
        .x_label_formatter(&|x| {
            if (x.fract() - 0.5).abs() < 0.01 { name(x) } else { String::new() }
        })
        .y_desc("requests")
        .draw()?;
    for (rank, coloured) in COLOURS.iter().enumerate() {
        let colour = coloured.colour;
        let pieces = columns.iter().zip(0_u32..).map(|(column, number)| {
            let below: u64 = COLOURS[..rank].iter().map(|below| below.requests(column)).sum();
            let (left, right) = (f64::from(number) + 0.2, f64::from(number) + 0.8);
            Rectangle::new([(left, below), (right, below + coloured.requests(column))], colour.filled())
        });
        chart
            .draw_series(pieces)?
            .label(coloured.label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    let style = TextStyle::from(("sans-serif", 16)).pos(Pos::new(HPos::Center, VPos::Bottom));
    chart.draw_series(columns.iter().zip(0_u32..).map(|(column, number)| {
        let total = column.rpc.total();
        Text::new(total.to_string(), (f64::from(number) + 0.5, total + most / 80), style.clone())
    }))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

/// The bar of a point of the x axis.
fn index_at(x: f64) -> usize {
    (0..64).take_while(|number| f64::from(*number) + 1.0 <= x).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;
    use curt_proto::{nfs3::NfsProcedure, nfs4::Nfs4Operation};

    #[test]
    fn operations_of_every_version_have_the_colour_of_their_meaning() {
        for operation in Operation::nfs().chain(Operation::nfs4()) {
            let count = COLOURS.iter().filter(|coloured| (coloured.is_meant)(operation)).count();
            assert_eq!(count, 1, "{}", operation.key());
        }
        let sent = [
            (Nfs4Operation::Getattr, 1),
            (Nfs4Operation::Lookup, 2),
            (Nfs4Operation::Access, 4),
            (Nfs4Operation::Read, 8),
            (Nfs4Operation::Readdir, 16),
            (Nfs4Operation::Open, 32),
        ];
        let column =
            ComparisonColumn { title: String::new(), rpc: sent.into_iter().collect(), pages: Vec::new() };
        let drawn = COLOURS.each_ref().map(|coloured| coloured.requests(&column));
        assert_eq!(drawn, [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn every_bar_shows_its_total_and_its_options() {
        let column = |title: &str, reads| ComparisonColumn {
            title: title.into(),
            rpc: [(NfsProcedure::Read, reads), (NfsProcedure::Fsinfo, 1), (NfsProcedure::Access, 40)]
                .into_iter()
                .collect(),
            pages: Vec::new(),
        };
        let svg = bars("page", &[column("defaults", 900), column("noaccesscheck", 300)]).unwrap();
        for text in ["941", "341", "defaults", "noaccesscheck", "page"] {
            assert!(
                svg.contains(&format!(">\n{text}\n<")) || svg.contains(&format!(">{text}<")),
                "{text} is not in {svg}"
            );
        }
        assert!(bars("nothing", &[]).is_err());
    }

    #[test]
    fn the_legend_stands_beside_the_bars() {
        let column = ComparisonColumn {
            title: "defaults".into(),
            rpc: [(NfsProcedure::Read, 900)].into_iter().collect(),
            pages: Vec::new(),
        };
        let svg = bars("page", &[column.clone(), column]).unwrap();
        let left = |element: &str| {
            let (_, after) = element.split_once("x=\"")?;
            after.split_once('"')?.0.parse::<u32>().ok()
        };
        let text = |words: &str| {
            let elements = svg.split("<text");
            let found = elements.filter(|element| element.lines().any(|line| line == words));
            found.last().and_then(left).unwrap()
        };
        assert!(text("READDIRPLUS") > text("900"), "{svg}");
    }
}
