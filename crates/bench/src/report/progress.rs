//! Progress of runs over time, as lines, in SVG.

use plotters::prelude::*;

use super::chart::ChartError;

/// The picture's size in pixels.
const SIZE: (u32, u32) = (960, 540);

/// One line for each run, as an SVG file; the label of the y axis is `what`.
///
/// # Errors
/// There is no run, or those of the drawing library.
pub fn lines(title: &str, what: &str, runs: &[(&str, &[(f64, u64)])]) -> Result<String, ChartError> {
    if runs.iter().all(|(_, points)| points.is_empty()) {
        return Err(ChartError("no run".into()));
    }
    let mut svg = String::new();
    draw(title, what, runs, &mut svg).map_err(|error| ChartError(error.to_string()))?;
    Ok(svg)
}

fn draw(
    title: &str,
    what: &str,
    runs: &[(&str, &[(f64, u64)])],
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || runs.iter().flat_map(|(_, points)| points.iter());
    let longest = points().map(|(seconds, _)| *seconds).fold(0.001, f64::max);
    let most = points().map(|(_, count)| *count).max().unwrap_or(1);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..longest, 0..most + most / 8)?;
    chart.configure_mesh().x_desc("seconds").y_desc(what).draw()?;
    for (number, (name, points)) in runs.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let start = std::iter::once((0.0, 0));
        chart
            .draw_series(std::iter::once(PathElement::new(
                start.chain(points.iter().copied()).collect::<Vec<_>>(),
                colour.stroke_width(2),
            )))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    drop(chart);
    area.present()?;
    drop(area);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn every_run_is_a_line_with_its_name() {
        let svg = lines("title", "names", &[("idle", &[(0.5, 10), (1.0, 20)]), ("changing", &[(2.0, 20)])])
            .unwrap();
        for text in ["idle", "changing", "seconds", "names", "title"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(svg.matches("<polyline").count() >= 2);
        assert!(lines("nothing", "names", &[("idle", &[])]).is_err());
    }
}
