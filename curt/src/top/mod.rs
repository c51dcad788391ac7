//! `curt top`: mounts or a server on a screen, with rates per second, requests saved by caches, and
//! the processes and paths that cause requests.
//!
//! `sample` gets samples from the daemons, `tables` computes rates from two samples (of `mounts`
//! with their `caches`, or of a `server`), `app` has the state that keys change, `draw` draws both,
//! `terminal` has the terminal's state. Only `sample` and `terminal` have side effects.

mod app;
mod caches;
mod draw;
mod mounts;
mod sample;
mod server;
mod table;
mod tables;
mod terminal;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use app::{App, KeyOutcome};
use sample::{SampleSource, Sampler};
use table::TopTable;
use tables::tables;
use terminal::Screen;

use crate::output;

/// Interval of checks for signals while no key is pressed.
const TICK: Duration = Duration::from_millis(100);

/// Arguments of `curt top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keys: q quits, Tab and 1 to 9 choose the table, s and S the column to sort by, r reverses the order, m chooses the mount, p pauses, ? shows help.\n\
                  Processes and paths are counted only while a 'curt top' runs, and for ten seconds afterwards.\n\
                  Colours are off if NO_COLOR is set.\n\n\
                  Exit status: 0, or 1 if the mount or server is not found."
)]
pub(crate) struct TopArguments {
    /// The mount to show; without it, all mounts of this user
    mount: Option<PathBuf>,
    /// Show a server instead, given by its process id or its state directory; without either, this
    /// user's only server
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "", conflicts_with = "mount")]
    server: Option<String>,
    /// Seconds between updates
    #[arg(short, long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Take two samples, print all tables and exit
    #[arg(long)]
    once: bool,
    /// With --once: print JSON, an object with an array for each table
    #[arg(long, requires = "once")]
    json: bool,
}

/// Runs `curt top`.
pub(crate) fn run(arguments: &TopArguments) -> ExitCode {
    let shown = if arguments.once { once(arguments) } else { watch(arguments) };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::failed("curt top", &error),
    }
}

fn source(arguments: &TopArguments) -> SampleSource {
    match &arguments.server {
        Some(which) => SampleSource::Server(which.as_str().into()),
        None => SampleSource::Mounts(arguments.mount.clone()),
    }
}

fn once(arguments: &TopArguments) -> Result<()> {
    let source = source(arguments);
    let before = source.sample()?;
    std::thread::sleep(Duration::from_secs(arguments.interval.into()));
    let now = source.sample()?;
    let tables = tables(&before, &now, None);
    let text = if arguments.json {
        let mut json = serde_json::to_string_pretty(&tables::json(&before, &now, &tables))?;
        json.push('\n');
        json
    } else {
        let texts: Vec<String> = tables.iter().map(TopTable::text).collect();
        texts.join("\n")
    };
    output::print(&text)
}

fn watch(arguments: &TopArguments) -> Result<()> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "not a terminal; use curt top --once"
    );
    let source = source(arguments);
    // Errors are reported before the screen is used.
    let first = source.sample()?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let interval = Duration::from_secs(arguments.interval.into());
    let sampler = Sampler::start(source, interval)?;
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut app = App::new(first, has_colour);
    let _screen = Screen::take(std::io::stdout())?;
    let mut terminal = Terminal::new(CrosstermBackend::new(std::io::stdout()))?;
    while !ended.load(Ordering::Relaxed) {
        while let Some(sample) = sampler.next() {
            app.take(sample);
        }
        terminal.draw(|frame| draw::draw(frame, &mut app))?;
        if !event::poll(TICK)? {
            continue;
        }
        // A change of size is drawn in the next round.
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && app.key(key) == KeyOutcome::End
        {
            break;
        }
    }
    Ok(())
}
