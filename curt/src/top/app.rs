//! The state of the screen, and its changes by keys. It does not depend on a terminal.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Sample, SampleData};
use super::table::{TableCell, TopTable};
use super::tables::{seconds, tables};

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    GoOn,
    End,
}

/// The state of the screen.
pub(super) struct App {
    before: Sample,
    now: Sample,
    tables: Vec<TopTable>,
    /// The current table.
    tab: usize,
    /// The mount that is shown alone.
    only: Option<String>,
    /// The selected sort column.
    by: Option<usize>,
    ascending: bool,
    pub(super) first_row: usize,
    pub(super) is_paused: bool,
    pub(super) helps: bool,
    pub(super) has_colour: bool,
}

impl App {
    /// A screen with a first sample.
    pub(super) fn new(first: Sample, has_colour: bool) -> Self {
        let mut app = Self {
            before: first.clone(),
            now: first,
            tables: Vec::new(),
            tab: 0,
            only: None,
            by: None,
            ascending: false,
            first_row: 0,
            is_paused: false,
            helps: false,
            has_colour,
        };
        app.tables = tables(&app.before, &app.now, None);
        app
    }

    /// Adds another sample.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.before = std::mem::replace(&mut self.now, sample);
        self.fill();
    }

    fn fill(&mut self) {
        let next = tables(&self.before, &self.now, self.only.as_deref());
        // If a sample is empty, the last one remains.
        if !next.is_empty() {
            self.tables = next;
            self.tab = self.tab.min(self.tables.len() - 1);
        }
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> KeyOutcome {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return KeyOutcome::End,
            KeyCode::Char('q') => return KeyOutcome::End,
            // An overlay is closed first.
            KeyCode::Esc if !self.helps => return KeyOutcome::End,
            KeyCode::Esc => self.helps = false,
            KeyCode::Char('?' | 'h') => self.helps = !self.helps,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.tab + 1),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.tab + self.tables.len().max(1) - 1),
            KeyCode::Char(digit @ '1'..='9') => {
                let tab = usize::from(digit as u8 - b'1');
                if tab < self.tables.len() {
                    self.turn_to(tab);
                }
            }
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(-1),
            KeyCode::Char('r') => self.ascending = !self.ascending,
            KeyCode::Char('m') => self.next_mount(),
            KeyCode::Down | KeyCode::Char('j') => self.first_row = self.first_row.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::Home => self.first_row = 0,
            _ => {}
        }
        KeyOutcome::GoOn
    }

    fn turn_to(&mut self, tab: usize) {
        self.tab = tab % self.tables.len().max(1);
        self.by = None;
        self.ascending = false;
        self.first_row = 0;
    }

    fn sort_by(&mut self, step: isize) {
        let Some(table) = self.table() else { return };
        let (columns, by) = (table.columns.len(), self.by.unwrap_or(table.by));
        self.by = Some((by + columns).saturating_add_signed(step) % columns);
        self.first_row = 0;
    }

    /// All mounts, then each alone.
    fn next_mount(&mut self) {
        let SampleData::Mounts(mounts) = &self.now.data else {
            return;
        };
        let mut places = mounts.iter().map(|mount| mount.report.mount_point.display().to_string());
        self.only = match &self.only {
            None => places.next(),
            Some(only) => {
                let _ = places.find(|place| place == only);
                places.next()
            }
        };
        self.first_row = 0;
        self.fill();
    }

    /// The names of the tabs, and the current one.
    pub(super) fn tabs(&self) -> (Vec<&'static str>, usize) {
        (self.tables.iter().map(|table| table.name).collect(), self.tab)
    }

    /// The current table.
    pub(super) fn table(&self) -> Option<&TopTable> {
        self.tables.get(self.tab)
    }

    /// The sort column, and whether the order is ascending.
    pub(super) fn order(&self) -> (usize, bool) {
        let by = self.by.or_else(|| self.table().map(|table| table.by));
        (by.unwrap_or(0), self.ascending)
    }

    /// The table's rows in their order.
    pub(super) fn rows(&self) -> Vec<&[TableCell]> {
        let Some(table) = self.table() else {
            return Vec::new();
        };
        let (by, ascending) = self.order();
        let mut rows: Vec<&[TableCell]> = table.rows.iter().map(Vec::as_slice).collect();
        rows.sort_by(|one, other| {
            let order = one[by].compare(&other[by]);
            let order = if ascending { order } else { order.reverse() };
            // Equal rows keep their order between samples.
            order.then_with(|| match one[0].compare(&other[0]) {
                Ordering::Equal => Ordering::Equal,
                order => order,
            })
        });
        rows
    }

    /// The line above the tables.
    pub(super) fn title(&self) -> String {
        let about = match &self.now.data {
            SampleData::Nobody(why) => return format!("curt top: {why}; the last report:"),
            SampleData::Mounts(mounts) => match &self.only {
                Some(only) => only.clone(),
                None => format!("{} mounts", mounts.len()),
            },
            SampleData::Server(report) => {
                format!("server {}, exports {}", report.pid, report.exports.join(", "))
            }
        };
        let pace = match (self.is_paused, seconds(&self.before, &self.now)) {
            (true, _) => "paused".to_owned(),
            (false, 0.0) => "since the beginning".to_owned(),
            (false, seconds) => format!("last {seconds:.1} s"),
        };
        format!("curt top: {about} ({pace})")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
pub(super) mod tests {
    use std::time::Instant;

    use super::super::tables::tests::sample;
    use super::*;

    pub(in crate::top) fn app() -> App {
        let start = Instant::now();
        let mut app = App::new(sample(start, 10, 100), true);
        app.take(sample(start, 12, 150));
        app
    }

    fn press(app: &mut App, keys: &str) -> KeyOutcome {
        keys.chars().map(|key| app.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))).last().unwrap()
    }

    #[test]
    fn keys_choose_the_table_the_order_and_the_mount() {
        let mut app = app();
        assert_eq!(app.tabs().1, 0);
        press(&mut app, "2");
        assert_eq!(app.table().unwrap().name, "procedures");
        app.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
        assert_eq!(app.table().unwrap().name, "caches");
        assert_eq!(app.rows()[0][0], TableCell::Text("names".to_owned()), "{:?}", app.rows());
        // By the name of the cache, descending; then reversed.
        press(&mut app, "S");
        assert_eq!(app.order(), (0, false));
        assert_eq!(app.rows()[0][0], TableCell::Text("permissions".to_owned()));
        press(&mut app, "r");
        assert_eq!(app.rows()[0][0], TableCell::Text("attributes".to_owned()));
        app.key(KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT));
        assert_eq!((app.table().unwrap().name, app.order()), ("procedures", (1, false)));
        assert!(app.title().contains("1 mounts"));
        press(&mut app, "m");
        assert!(app.title().contains("/mnt"));
        press(&mut app, "m");
        assert!(app.title().contains("1 mounts"));
    }

    #[test]
    fn paused_nothing_changes_and_help_is_put_away_before_the_end() {
        let mut app = app();
        press(&mut app, "p");
        app.take(sample(Instant::now(), 20, 900));
        assert!(app.title().contains("paused"));
        assert_eq!(app.table().unwrap().rows[0][8], TableCell::Count(150));
        press(&mut app, "?");
        let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
        assert_eq!(app.key(escape), KeyOutcome::GoOn);
        assert_eq!(app.key(escape), KeyOutcome::End);
        assert_eq!(press(&mut app, "q"), KeyOutcome::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.key(interrupt), KeyOutcome::End);
    }

    #[test]
    fn the_last_report_stays_while_no_new_one_arrives() {
        let mut app = app();
        app.take(Sample {
            at: Instant::now(),
            data: SampleData::Nobody("the control socket: gone".to_owned()),
        });
        assert!(app.title().contains("gone"));
        assert_eq!(app.rows().len(), 1);
        let before = app.rows().len();
        app.take(sample(Instant::now(), 30, 200));
        assert_eq!(app.rows().len(), before);
    }
}
