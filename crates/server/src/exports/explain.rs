//! Which exports a given client would get from files of exports(5), and by which line. The rules
//! are those of a server, but names are resolved at once: if no name service answers, a server lets
//! the client wait, and here the line does not match.

use std::net::IpAddr;

use super::clients::ClientSpec;
use super::name_service_cache::{NameService, checked_name, is_member};
use super::parser::ExportsEntry;
use super::pattern;

/// The lines that match a client for one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportExplanation<'e> {
    /// The path.
    pub path: &'e [u8],
    /// The line that applies to the client; none if it may not use the path.
    pub applied: Option<&'e ExportsEntry>,
    /// Lines that also match it, but do not apply.
    pub others: Vec<&'e ExportsEntry>,
}

/// The access that the machine at an address would have to each path, in the order of the lines.
#[must_use]
pub fn explain<'e>(
    entries: &'e [ExportsEntry],
    address: IpAddr,
    names: &dyn NameService,
) -> Vec<ExportExplanation<'e>> {
    let address = address.to_canonical();
    let mut explanations: Vec<ExportExplanation<'e>> = Vec::new();
    for entry in entries {
        let at = explanations.iter().position(|known| known.path == entry.path);
        let at = at.unwrap_or_else(|| {
            explanations.push(ExportExplanation { path: &entry.path, applied: None, others: Vec::new() });
            explanations.len() - 1
        });
        if is(&entry.client, address, names)
            && let Some(explanation) = explanations.get_mut(at)
        {
            explanation.others.push(entry);
        }
    }
    for explanation in &mut explanations {
        // A stable sort, as in a server's table.
        explanation.others.sort_by_key(|entry| entry.client.kind());
        if !explanation.others.is_empty() {
            explanation.applied = Some(explanation.others.remove(0));
        }
    }
    explanations
}

fn is(client: &ClientSpec, address: IpAddr, names: &dyn NameService) -> bool {
    match client {
        ClientSpec::Anyone => true,
        ClientSpec::Address(own) => *own == address,
        ClientSpec::Network(network) => network.contains(address),
        ClientSpec::Host(name) => names.addresses(name).is_some_and(|addresses| addresses.contains(&address)),
        ClientSpec::Pattern(pattern) => {
            checked_name(names, address).flatten().is_some_and(|name| pattern::fits(pattern, &name))
        }
        ClientSpec::Netgroup(group) => is_member(names, group, address).unwrap_or(false),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use curt_rpc::clock::TimeSource;
    use curt_vfs::{MemoryOptions, MemoryVfs};

    use super::*;
    use crate::exports::name_service_cache::{NameServiceCache, tests_service::Scripted};
    use crate::exports::table::{Export, MatchedClient};
    use crate::exports::{ExportClient, ExportDefinition, ParsedExports};
    use crate::file_handle::{ExportId, FileSystemId};

    fn service() -> Scripted {
        Scripted::default()
            .host("one.lab", "10.0.0.1")
            .host("two.lab", "10.0.0.2")
            .host("six.lab", "fd00::6")
            .forward("alias", "10.0.0.2")
            .reverse("10.0.0.9", "one.lab")
            .member("trusted", "two.lab")
            .member("trusted", "10.0.0.3")
    }

    const LINES: &str = "/srv *(anonuid=1) @trusted(anonuid=2) *.lab(anonuid=3) 10.0.0.0/30(anonuid=4) \
                         10.0.0.0/8(anonuid=5) one.lab(anonuid=6) 10.0.0.1(anonuid=7)\n\
                         /b @trusted(anonuid=8) *.lab(anonuid=9)\n\
                         /c alias(anonuid=10) fd00::/16(anonuid=11) @trusted(anonuid=12)\n";

    /// The line that a client gets for each path, by its anonuid; 0: none.
    const EXPECTED: [(&str, [u32; 3]); 6] = [
        // Name and address are both hosts: the first line applies.
        ("10.0.0.1", [6, 9, 0]),
        ("10.0.0.2", [4, 9, 10]),
        ("10.0.0.3", [4, 8, 12]),
        // A name that the owner of the reverse zone invented does not match.
        ("10.0.0.9", [5, 0, 0]),
        ("fd00::6", [3, 9, 11]),
        ("192.168.1.1", [1, 0, 0]),
    ];

    // SEMANTICS: export-1.
    #[test]
    fn hosts_come_before_networks_patterns_netgroups_and_everybody() {
        let mut parsed = ParsedExports::default();
        parsed.read(Path::new("exports"), LINES.as_bytes());
        assert_eq!(parsed.problems, []);
        let service = service();
        for (address, expected) in EXPECTED {
            let explained = explain(&parsed.entries, address.parse().unwrap(), &service);
            let uids: Vec<u32> = explained
                .iter()
                .map(|it| it.applied.map_or(0, |entry| entry.options.common.anonymous_uid))
                .collect();
            assert_eq!(uids, expected, "{address}");
        }
        let explained = explain(&parsed.entries, "10.0.0.2".parse().unwrap(), &service);
        let others: Vec<String> = explained[0].others.iter().map(|entry| entry.client.to_string()).collect();
        assert_eq!(others, ["10.0.0.0/8", "*.lab", "@trusted", "*"]);
    }

    // SEMANTICS: export-1.
    #[test]
    fn the_table_decides_as_is_explained() {
        let mut parsed = ParsedExports::default();
        parsed.read(Path::new("exports"), LINES.as_bytes());
        let names =
            NameServiceCache::new(Box::new(service()), Arc::new(AtomicU64::new(1)), TimeSource::System);
        names.start().unwrap();
        let soon = Instant::now() + Duration::from_secs(60);
        names.preload_hosts(["one.lab", "alias"].into_iter(), soon);
        for (at, path) in ["/srv", "/b", "/c"].iter().enumerate() {
            let of_path = parsed.entries.iter().filter(|entry| entry.path == path.as_bytes());
            let clients = of_path.map(|entry| ExportClient {
                client: entry.client.clone(),
                rules: entry.options.rules(),
                options: entry.options.to_string(),
            });
            let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
            let everyone = ExportDefinition::for_everyone(path.as_bytes().to_vec(), vfs, Default::default());
            let definition = ExportDefinition { clients: clients.collect(), ..everyone };
            let export = Export::new(definition, ExportId(1), FileSystemId(1));
            for (address, expected) in EXPECTED {
                let address = address.parse().unwrap();
                let uid = loop {
                    match export.client(address, &names) {
                        MatchedClient::Client(client) => break client.rules.common().anonymous_uid,
                        MatchedClient::Nobody => break 0,
                        MatchedClient::Unknown(question) => assert!(names.wait(&question, soon)),
                    }
                };
                assert_eq!(uid, expected[at], "{path} {address}");
            }
        }
    }
}
