//! `curt exports`: what files of exports(5) say, and what a given client would get of it and why.

use std::{
    io::{self, Write as _},
    net::{IpAddr, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use curt_server::{Entry, Explanation, NameService as _, Parsed, SystemNames, explain, read_exports};
use serde_json::{Value, json};

/// Show what exports(5) files export, or what a given client would get of it and by which line
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  curt exports                      every line, with all its options\n  \
                  curt exports 192.168.1.7          what that client would get, and why\n  \
                  curt exports -c new.exports web1  of a file that is not in service yet\n\n\
                  Exit status: 0, or 1 if a file has errors or CLIENT is unknown."
)]
pub(crate) struct ExportsArguments {
    /// A client: its address or its name
    #[arg(value_name = "CLIENT")]
    client: Option<String>,

    /// Read this file, or the *.exports of this directory; may be given more than once [default: /etc/exports and
    /// /etc/exports.d/*.exports]
    #[arg(short, long = "config", value_name = "FILE")]
    config: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints and returns the exit status.
pub(crate) fn run(arguments: &ExportsArguments) -> ExitCode {
    let parsed = read_exports(&arguments.config);
    for problem in &parsed.problems {
        eprintln!("{problem}");
    }
    let shown = match &arguments.client {
        None => show_all(&parsed, arguments.json),
        Some(client) => match addresses(client) {
            Ok(addresses) => show_client(&parsed, &addresses, arguments.json),
            Err(error) => {
                eprintln!("curt exports: {client}: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    match io::stdout().write_all(shown.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            eprintln!("curt exports: {error}");
            return ExitCode::FAILURE;
        }
        Ok(()) => {}
    }
    if parsed.has_errors() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// The addresses of a client, which may be one already.
fn addresses(client: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = client.parse::<IpAddr>() {
        return Ok(vec![address.to_canonical()]);
    }
    let mut addresses: Vec<IpAddr> = (client, 0).to_socket_addrs()?.map(|found| found.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn show_all(parsed: &Parsed, as_json: bool) -> String {
    if as_json {
        let exports: Vec<Value> = parsed.entries.iter().map(line).collect();
        return format!("{}\n", json!({ "exports": exports }));
    }
    let lines = parsed.entries.iter().map(|entry| format!("{entry}\n"));
    lines.collect()
}

fn show_client(parsed: &Parsed, addresses: &[IpAddr], as_json: bool) -> String {
    let of_address = |address: &IpAddr| (*address, explain(&parsed.entries, *address, &SystemNames));
    let explained: Vec<_> = addresses.iter().map(of_address).collect();
    if as_json {
        let clients: Vec<Value> = explained
            .iter()
            .map(|(address, each)| as_value(*address, each))
            .collect();
        return format!("{}\n", json!({ "clients": clients }));
    }
    explained
        .iter()
        .map(|(address, each)| as_text(*address, each))
        .collect()
}

fn as_text(address: IpAddr, explained: &[Explanation<'_>]) -> String {
    let mut text = match SystemNames.name(address).flatten() {
        Some(name) => format!("{address} ({name}) gets\n"),
        None => format!("{address} gets\n"),
    };
    for it in explained {
        let path = it.path.escape_ascii();
        text += &match it.holds {
            None => format!("  {path}\n    nothing: no line of it matches this client\n"),
            Some(entry) => format!(
                "  {path}\n    {}\n    by {} {} at {}\n",
                entry.options,
                entry.client.kind(),
                entry.client,
                entry.place
            ),
        };
        for other in &it.others {
            text += &format!(
                "    rather than {} {} at {}\n",
                other.client.kind(),
                other.client,
                other.place
            );
        }
    }
    text
}

fn as_value(address: IpAddr, explained: &[Explanation<'_>]) -> Value {
    let export = |it: &Explanation<'_>| {
        let others: Vec<Value> = it.others.iter().map(|entry| line(entry)).collect();
        json!({
            "path": it.path.escape_ascii().to_string(),
            "allowed": it.holds.is_some(),
            "by": it.holds.map(line),
            "rather_than": others,
        })
    };
    json!({
        "address": address.to_string(),
        "name": SystemNames.name(address).flatten(),
        "exports": explained.iter().map(export).collect::<Vec<_>>(),
    })
}

fn line(entry: &Entry) -> Value {
    json!({
        "path": entry.path.escape_ascii().to_string(),
        "client": entry.client.to_string(),
        "kind": entry.client.kind().to_string(),
        "options": entry.options.to_string(),
        "file": entry.place.file.display().to_string(),
        "line": entry.place.line,
    })
}
