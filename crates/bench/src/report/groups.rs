//! Values side by side in groups, as bars, in SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::ChartError;

/// The picture's size in pixels.
const SIZE: (u32, u32) = (1100, 560);
/// One for each series; they begin anew beyond the last.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0xb0, 0xb0, 0xb0),
    RGBColor(0x70, 0x70, 0x70),
    RGBColor(0x4c, 0x72, 0xb0),
    RGBColor(0x8f, 0xb3, 0xe0),
    RGBColor(0xc4, 0x4e, 0x52),
    RGBColor(0x55, 0xa8, 0x68),
    RGBColor(0xcc, 0xb9, 0x74),
];

/// Named values, one for each group; a group may lack one.
pub type Series = (String, Vec<Option<f64>>);

/// One bar for each value, those of a group together, as the text of an SVG file.
///
/// # Errors
/// There is no value, or the drawing library's own.
pub fn grouped_bars(
    title: &str,
    unit: &str,
    groups: &[String],
    series: &[Series],
) -> Result<String, ChartError> {
    let most = series
        .iter()
        .flat_map(|(_, values)| values.iter().flatten().copied())
        .fold(0.0, f64::max);
    if groups.is_empty() || most <= 0.0 {
        return Err(ChartError("no value".into()));
    }
    let mut svg = String::new();
    draw((title, unit), groups, series, most, &mut svg).map_err(|error| ChartError(error.to_string()))?;
    Ok(svg)
}

fn draw(
    (title, unit): (&str, &str),
    groups: &[String],
    series: &[Series],
    most: f64,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let groups_count = u32::try_from(groups.len())?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..f64::from(groups_count), 0.0..most * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(unit)
        .draw()?;
    let width = 0.86 / series.len() as f64;
    for (rank, (name, values)) in series.iter().enumerate() {
        let colour = COLOURS[rank % COLOURS.len()];
        let bars = values.iter().zip(0_u32..).filter_map(|(value, group)| {
            let left = f64::from(group) + 0.07 + rank as f64 * width;
            let corners = [(left, 0.0), (left + width * 0.92, (*value)?)];
            Some(Rectangle::new(corners, colour.filled()))
        });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    let style = TextStyle::from(("sans-serif", 12)).pos(Pos::new(HPos::Center, VPos::Top));
    let names = groups.iter().zip(0_u32..).map(|(name, group)| {
        let below = EmptyElement::at((f64::from(group) + 0.5, 0.0));
        below + Text::new(name.clone(), (0, 8), style.clone())
    });
    chart.draw_series(names)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn every_group_and_series_is_named_and_a_missing_value_leaves_no_bar() {
        let groups = ["GETATTR".to_owned(), "READ".to_owned()];
        let bars = |values: [Option<f64>; 2]| {
            let series = [("echo".to_owned(), values.to_vec())];
            grouped_bars("latency", "µs", &groups, &series).unwrap()
        };
        let both = bars([Some(1.0), Some(2.0)]);
        for text in ["GETATTR", "READ", "echo", "latency", "µs"] {
            assert!(both.contains(text), "{text} is not in {both}");
        }
        let count = |svg: &str| svg.matches("<rect").count();
        assert_eq!(count(&both), count(&bars([None, Some(2.0)])) + 1);
        assert!(grouped_bars("nothing", "µs", &groups, &[]).is_err());
    }
}
