//! `curt exports`: the exports in exports(5) files, and the options of a given client with their
//! lines.

use std::{
    io,
    net::{IpAddr, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use curt_server::{
    ExportExplanation, ExportsEntry, NameService as _, ParsedExports, Severity, SystemNames, explain,
    read_exports,
};
use serde_json::{Value, json};

use crate::serve::ServableEntries;
use crate::{errors, output};

/// List the exports in exports(5) files, or the exports and options of a given client and the lines
/// they come from
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  curt exports                      every line, with all its options\n  \
                  curt exports 192.168.1.7          the exports of that client, and the lines they come from\n  \
                  curt exports -c new.exports web1  the same for another file\n\n\
                  Exit status: 0, or 1 if a file has errors, if CLIENT is unknown or, with CLIENT, if a directory cannot be served.")]
pub(crate) struct ExportsArguments {
    /// A client's address or name
    #[arg(value_name = "CLIENT")]
    client: Option<String>,

    /// Read this file, or the *.exports files of this directory; may be repeated [default:
    /// /etc/exports and /etc/exports.d/*.exports]
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
    let mut failed = parsed.has_errors();
    let shown = match &arguments.client {
        None => show_all(&parsed, arguments.json),
        Some(client) => match (addresses(client), ServableEntries::of(&parsed)) {
            (Ok(addresses), Ok(standing)) => {
                for problem in &standing.problems {
                    eprintln!("{problem}");
                    failed |= problem.severity == Severity::Error;
                }
                show_client(&parsed, &standing, &addresses, arguments.json)
            }
            (Err(error), _) => {
                eprintln!("curt exports: {client} is not an address, and cannot be resolved: {error}");
                return ExitCode::FAILURE;
            }
            (_, Err(error)) => {
                eprintln!("curt exports: {}", errors::line(&error));
                return ExitCode::FAILURE;
            }
        },
    };
    let printed = output::print(&shown)
        .map_or_else(|error| output::failed("curt exports", &error), |()| ExitCode::SUCCESS);
    if failed { ExitCode::FAILURE } else { printed }
}

/// The addresses of a client, given by address or name.
fn addresses(client: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = client.parse::<IpAddr>() {
        return Ok(vec![address.to_canonical()]);
    }
    let mut addresses: Vec<IpAddr> = (client, 0).to_socket_addrs()?.map(|found| found.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn show_all(parsed: &ParsedExports, as_json: bool) -> String {
    if as_json {
        let exports: Vec<Value> = parsed.entries.iter().map(line).collect();
        return format!("{}\n", json!({ "exports": exports }));
    }
    let lines = parsed.entries.iter().map(|entry| format!("{entry}\n"));
    lines.collect()
}

fn show_client(
    parsed: &ParsedExports,
    standing: &ServableEntries<'_>,
    addresses: &[IpAddr],
    as_json: bool,
) -> String {
    let of_address = |address: &IpAddr| (*address, explain(&parsed.entries, *address, &SystemNames));
    let explained: Vec<_> = addresses.iter().map(of_address).collect();
    if as_json {
        let clients: Vec<Value> =
            explained.iter().map(|(address, each)| as_value(*address, each, standing)).collect();
        return format!("{}\n", json!({ "clients": clients }));
    }
    explained.iter().map(|(address, each)| as_text(*address, each, standing)).collect()
}

fn as_text(address: IpAddr, explained: &[ExportExplanation<'_>], standing: &ServableEntries<'_>) -> String {
    let mut text = match SystemNames.name(address).flatten() {
        Some(name) => format!("{address} ({name}) gets\n"),
        None => format!("{address} gets\n"),
    };
    for it in explained {
        let path = it.path.escape_ascii();
        text += &match it.applied {
            None => format!("  {path}\n    nothing: no line of it matches this client\n"),
            Some(entry) => format!(
                "  {path}\n    {}\n    by {} {} at {}\n",
                entry.options,
                entry.client.kind(),
                entry.client,
                entry.place
            ),
        };
        if let Some(why) = it.applied.and_then(|entry| standing.refusal(entry)) {
            text += &format!("    (not served: {why})\n");
        }
        for other in &it.others {
            text += &format!("    rather than {} {} at {}\n", other.client.kind(), other.client, other.place);
        }
    }
    text
}

fn as_value(address: IpAddr, explained: &[ExportExplanation<'_>], standing: &ServableEntries<'_>) -> Value {
    let export = |it: &ExportExplanation<'_>| {
        let others: Vec<Value> = it.others.iter().map(|entry| line(entry)).collect();
        let refusal = it.applied.and_then(|entry| standing.refusal(entry));
        json!({
            "path": String::from_utf8_lossy(it.path),
            "allowed": it.applied.is_some(),
            "served": it.applied.is_some() && refusal.is_none(),
            "not_served": refusal,
            "by": it.applied.map(line),
            "rather_than": others,
        })
    };
    json!({
        "address": address.to_string(),
        "name": SystemNames.name(address).flatten(),
        "exports": explained.iter().map(export).collect::<Vec<_>>(),
    })
}

fn line(entry: &ExportsEntry) -> Value {
    json!({
        "path": String::from_utf8_lossy(&entry.path),
        "client": entry.client.to_string(),
        "kind": entry.client.kind().to_string(),
        "options": entry.options.to_string(),
        "file": entry.place.file.display().to_string(),
        "line": entry.place.line,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn json_has_paths_as_they_are() {
        let mut parsed = ParsedExports::default();
        parsed.read(Path::new("exports"), "\"/srv/Büro \\042x\\042\" *(ro)\n".as_bytes());
        let shown: Value = serde_json::from_str(&show_all(&parsed, true)).unwrap();
        assert_eq!(shown["exports"][0]["path"], "/srv/Büro \"x\"", "{shown}");
        let standing = ServableEntries::of(&parsed).unwrap();
        let client = [IpAddr::from([10, 1, 1, 1])];
        let shown: Value = serde_json::from_str(&show_client(&parsed, &standing, &client, true)).unwrap();
        let export = &shown["clients"][0]["exports"][0];
        assert_eq!(export["path"], "/srv/Büro \"x\"", "{shown}");
        assert_eq!(export["by"]["path"], export["path"], "{shown}");
    }

    #[test]
    fn a_client_gets_a_message_about_what_is_not_served_and_why() {
        let top = tempfile::tempdir().unwrap();
        for name in ["there", "other"] {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        fs::write(top.path().join("file"), "").unwrap();
        let at = top.path().display();
        let text = format!("{at}/there *(rw)\n{at}/none *(rw)\n{at}/file *(rw)\n{at}/other *(mp)\n");
        let mut parsed = ParsedExports::default();
        parsed.read(Path::new("exports"), text.as_bytes());
        let standing = ServableEntries::of(&parsed).unwrap();
        let refusals: Vec<_> = parsed.entries.iter().map(|entry| standing.refusal(entry)).collect();
        let expected = [None, Some("no such directory"), Some("not a directory"), Some("nothing is mounted")];
        assert_eq!(refusals.len(), expected.len());
        for (refusal, expected) in refusals.iter().zip(expected) {
            match expected {
                None => assert_eq!(*refusal, None),
                Some(words) => assert!(refusal.unwrap().contains(words), "{refusal:?}"),
            }
        }
        let client = [IpAddr::from([10, 1, 1, 1])];
        let shown = show_client(&parsed, &standing, &client, false);
        assert_eq!(shown.matches("(not served: ").count(), 3, "{shown}");
        assert!(shown.contains("(not served: there is no such directory)"), "{shown}");
        let shown: Value = serde_json::from_str(&show_client(&parsed, &standing, &client, true)).unwrap();
        let exports = shown["clients"][0]["exports"].as_array().unwrap();
        let served = exports.iter().filter(|export| export["served"] == true).count();
        assert_eq!((exports.len(), served), (4, 1), "{shown}");
    }
}
