//! Times beside each other as multiples of one of them, as groups of bars, in SVG.

use plotters::prelude::*;

use super::chart::ChartError;

/// The picture's width in pixels, and the height of one bar.
const WIDTH: u32 = 1100;
const BAR: u32 = 18;
/// Room for the heading, the axis and the legend.
const AROUND: u32 = 130;

/// One group of bars for each of `groups`, with one bar for each of `series`, on a logarithmic axis
/// that begins at 1; each bar has its number beside it. The text of an SVG file.
///
/// # Errors
/// There is no group, or the drawing library's own.
pub fn bars(title: &str, series: &[&str], groups: &[(String, Vec<f64>)]) -> Result<String, ChartError> {
    if groups.is_empty() || series.is_empty() {
        return Err(ChartError("nothing was measured".into()));
    }
    let mut svg = String::new();
    draw(title, series, groups, &mut svg).map_err(|error| ChartError(error.to_string()))?;
    Ok(svg)
}

fn draw(
    title: &str,
    series: &[&str],
    groups: &[(String, Vec<f64>)],
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    // The name of a group stands above its bars.
    let rows_per_group = series.len() + 1;
    let rows = groups.len() * rows_per_group;
    let height = u32::try_from(rows)? * BAR + AROUND;
    let most = groups.iter().flat_map(|group| &group.1).copied().fold(1.0, f64::max);
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(34)
        .y_label_area_size(10)
        .build_cartesian_2d((0.9..most * 2.0).log_scale(), 0.0..rows as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_label_formatter(&|ratio| format!("{ratio} x"))
        .draw()?;
    for (rank, name) in series.iter().enumerate() {
        let colour = Palette99::pick(rank).to_rgba();
        let place = |number: usize| rows as f64 - (number * rows_per_group + rank) as f64 - 2.0;
        let ratio_of = |group: &(String, Vec<f64>)| group.1.get(rank).copied().unwrap_or(1.0);
        chart
            .draw_series(groups.iter().enumerate().map(|(number, group)| {
                let low = place(number);
                Rectangle::new([(1.0, low + 0.1), (ratio_of(group), low + 0.9)], colour.filled())
            }))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
        chart.draw_series(groups.iter().enumerate().map(|(number, group)| {
            let ratio = ratio_of(group);
            let at = (ratio.max(1.0) * 1.03, place(number) + 0.85);
            Text::new(format!("{ratio:.2}"), at, ("sans-serif", 13))
        }))?;
    }
    chart.draw_series(groups.iter().enumerate().map(|(number, group)| {
        let y = rows as f64 - (number * rows_per_group) as f64 - 0.15;
        Text::new(group.0.clone(), (1.0, y), ("sans-serif", 14))
    }))?;
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn each_bar_has_its_number_and_each_group_its_name() {
        let groups = [("build".to_owned(), vec![1.7, 11.0]), ("page".to_owned(), vec![2.5, 3.25])];
        let svg = bars("times", &["loop", "defaults"], &groups).unwrap();
        for text in ["build", "page", "1.70", "11.00", "2.50", "3.25", "loop", "defaults"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(bars("times", &[], &groups).is_err());
    }
}
