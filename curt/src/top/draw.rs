//! The screen: a title, tabs, a table, a line of keys.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::app::App;
use super::table::TableCell;

/// Minimum width of numeric columns.
const NUMBER: u16 = 8;

/// The keys and their effects.
const KEYS: &[(&str, &str)] = &[
    ("q, Esc, Ctrl-C", "end"),
    ("Tab, ->, <-, 1 to 9", "choose the table"),
    ("s, S", "sort by the next column, the one before"),
    ("r", "reverse the order"),
    ("m", "choose all mounts, or the next one"),
    ("up, down, Home", "move through the rows"),
    ("p, space", "pause, continue"),
    ("?", "show this help"),
];

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [title, tabs, body, keys] = areas.areas(frame.area());
    let strong = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(printable(&app.title()), strong), title);
    frame.render_widget(tab_line(app), tabs);
    table(frame, app, body);
    let text = "q end  Tab view  s sort  r reverse  m mount  p pause  ? help";
    frame.render_widget(Line::styled(text, coloured(app, Color::DarkGray)), keys);
    if app.helps {
        help(frame, body);
    }
}

fn coloured(app: &App, colour: Color) -> Style {
    if app.has_colour { Style::new().fg(colour) } else { Style::new() }
}

fn tab_line(app: &App) -> Line<'static> {
    let (names, chosen) = app.tabs();
    let tabs = names.into_iter().enumerate().map(|(place, name)| {
        let style = if place == chosen {
            coloured(app, Color::Cyan).add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Span::styled(format!(" {} {name} ", place + 1), style)
    });
    Line::from_iter(tabs)
}

fn table(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let rows = app.rows();
    let Some(shown) = app.table() else {
        let nothing = Paragraph::new("No data yet.");
        return frame.render_widget(nothing, area);
    };
    // A screen too small for one row shows the header.
    let room = usize::from(area.height.saturating_sub(1));
    let last = rows.len().saturating_sub(room.max(1));
    let first_row = app.first_row.min(last);
    let (by, ascending) = app.order();
    let texts: Vec<bool> = (0..shown.columns.len())
        .map(|place| place == 0 || shown.rows.iter().any(|row| matches!(row[place], TableCell::Text(_))))
        .collect();
    let head = shown.columns.iter().enumerate().map(|(place, column)| {
        let mark = match (place == by, ascending) {
            (true, true) => "^",
            (true, false) => "v",
            (false, _) => "",
        };
        cell(format!("{}{mark}", title(column)), texts[place])
    });
    let head_style = coloured(app, Color::Cyan).add_modifier(Modifier::BOLD);
    let head = Row::new(head.collect::<Vec<_>>()).style(head_style);
    let body = rows.iter().skip(first_row).take(room).map(|row| {
        let cells = row.iter().enumerate();
        Row::new(cells.map(|(place, one)| cell(printable(&one.text()), texts[place])).collect::<Vec<_>>())
    });
    let widths = shown.columns.iter().zip(&texts).map(|(column, is_text)| {
        let width = u16::try_from(title(column).len() + 1).unwrap_or(u16::MAX);
        if *is_text { Constraint::Min(width.max(16)) } else { Constraint::Length(width.max(NUMBER)) }
    });
    let widget = Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>()).header(head);
    frame.render_widget(widget, area);
    app.first_row = first_row;
}

/// A column's title.
fn title(column: &str) -> String {
    column.replace("_per_s", "/s").replace('_', " ")
}

/// Numbers are right-aligned.
fn cell(text: String, is_text: bool) -> Cell<'static> {
    let alignment = if is_text { Alignment::Left } else { Alignment::Right };
    Cell::from(Line::from(text).alignment(alignment))
}

/// Control characters in a name must not move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

fn help(frame: &mut Frame<'_>, body: Rect) {
    let lines: Vec<Line<'_>> =
        KEYS.iter().map(|(key, what)| Line::from(format!(" {key:<20} {what}"))).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let area = Rect { x: body.x, y: body.y, width: body.width.min(64), height: body.height.min(height) };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("keys")), area);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::app::tests::app;
    use super::*;

    fn screen(app: &mut App, (width, height): (u16, u16)) -> (Vec<String>, bool) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = (0..height).map(|y| {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            line.trim_end().to_owned()
        });
        let has_colour =
            buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        (lines.collect(), has_colour)
    }

    fn press(app: &mut App, key: char) {
        app.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }

    #[test]
    fn the_screen_has_a_title_tabs_a_table_and_keys() {
        let mut app = app();
        press(&mut app, '2');
        let (lines, has_colour) = screen(&mut app, (120, 10));
        assert!(lines[0].starts_with("curt top: 1 mounts (last 2.0 s)"), "{lines:?}");
        assert_eq!(lines[1], " 1 mounts  2 procedures  3 caches  4 processes  5 paths");
        assert!(lines[2].starts_with("procedure") && lines[2].contains("requests/sv"), "{lines:?}");
        assert!(
            lines[3].starts_with("LOOKUP") && lines[3].contains("25.0") && lines[3].ends_with("150"),
            "{lines:?}"
        );
        assert!(lines[9].starts_with("q end"), "{lines:?}");
        assert!(has_colour);
        press(&mut app, '4');
        let (lines, _) = screen(&mut app, (120, 10));
        assert!(lines[3].starts_with("42 make") && lines[3].contains("/mnt"), "{lines:?}");
    }

    #[test]
    fn no_colour_is_none_and_help_lies_over_the_table() {
        let mut app = app();
        app.has_colour = false;
        press(&mut app, '?');
        let (lines, has_colour) = screen(&mut app, (80, 24));
        assert!(!has_colour);
        assert!(lines.iter().any(|line| line.contains("sort by the next column")), "{lines:?}");
    }

    #[test]
    fn every_size_is_drawn() {
        let mut app = app();
        for helps in [false, true] {
            app.helps = helps;
            for size in [(1, 1), (2, 3), (20, 4), (500, 200)] {
                screen(&mut app, size);
            }
        }
        // There are no rows beyond the last one.
        app.first_row = 1000;
        screen(&mut app, (80, 24));
        assert_eq!(app.first_row, 0);
    }

    #[test]
    fn a_name_moves_no_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
