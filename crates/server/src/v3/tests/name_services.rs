//! Exports to host names while a name service does not answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use curt_proto::nfs3::{Fattr, NfsProcedure, NfsStat3};
use curt_rpc::clock::TimeSource;

use super::exports::export;
use super::fixture::{Fixture, memory, rules};
use crate::{ExportClient, ExportDefinition, NameService, NfsService, NfsServiceConfig, PersistentState};

/// A name service that does not answer until it is released.
struct Hanging(Arc<AtomicBool>);

impl Hanging {
    fn wait(&self) {
        while !self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl NameService for Hanging {
    fn addresses(&self, _: &str) -> Option<Vec<IpAddr>> {
        self.wait();
        Some(vec!["127.0.0.1".parse().unwrap()])
    }

    fn name(&self, _: IpAddr) -> Option<Option<String>> {
        self.wait();
        Some(Some("client.lab".into()))
    }

    fn in_netgroup(&self, _: &str, _: &str) -> Option<bool> {
        unreachable!("no netgroup is exported to")
    }

    fn groups(&self, _: u32) -> Option<Option<Vec<u32>>> {
        self.wait();
        Some(Some(vec![70]))
    }
}

/// A name service that cannot reach its servers.
struct Silent;

impl NameService for Silent {
    fn addresses(&self, _: &str) -> Option<Vec<IpAddr>> {
        None
    }

    fn name(&self, _: IpAddr) -> Option<Option<String>> {
        None
    }

    fn in_netgroup(&self, _: &str, _: &str) -> Option<bool> {
        None
    }

    fn groups(&self, _: u32) -> Option<Option<Vec<u32>>> {
        None
    }
}

// SEMANTICS: export-10.
#[test]
fn while_no_name_service_answers_clients_get_jukebox() {
    let mut fixture = Fixture::new();
    let of = |path: &str, client: &str| ExportDefinition {
        clients: vec![ExportClient {
            client: crate::ClientSpec::parse(client).unwrap(),
            ..ExportClient::everyone(rules())
        }],
        ..export(path, &fixture.vfs, rules())
    };
    let exports = [("/pattern", "*.lab"), ("/group", "@trusted"), ("/host", "web"), ("/all", "*")];
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: exports.iter().map(|(path, client)| of(path, client)).collect(),
        counters: Arc::default(),
    };
    fixture.service = NfsService::with_environment(setup, Box::new(Silent), TimeSource::System).unwrap();
    let status = |fixture: &Fixture, export| {
        let root = fixture.root_of(export);
        fixture.call::<Fattr, ()>(NfsProcedure::Getattr, &root).status()
    };
    for (number, (path, _)) in (1..=3).zip(exports) {
        assert_eq!(status(&fixture, number), NfsStat3::Jukebox, "{path}");
    }
    assert_eq!(status(&fixture, 4), NfsStat3::Ok);
    fixture.service.manage_groups().unwrap();
    assert_eq!(status(&fixture, 4), NfsStat3::Jukebox, "without groups nobody works");
}

// SEMANTICS: export-9.
#[test]
fn a_request_that_needs_a_name_gets_jukebox_and_delays_no_other() {
    let mut fixture = Fixture::new();
    let named = ExportDefinition {
        clients: vec![ExportClient {
            client: crate::ClientSpec::parse("*.lab").unwrap(),
            ..ExportClient::everyone(rules())
        }],
        ..export("/one", &fixture.vfs, rules())
    };
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![named, export("/two", &memory(2), rules())],
        counters: Arc::default(),
    };
    let released = Arc::new(AtomicBool::new(false));
    let service =
        NfsService::with_environment(setup, Box::new(Hanging(Arc::clone(&released))), TimeSource::System);
    fixture.service = service.unwrap();
    let status = |fixture: &Fixture, export| {
        let root = fixture.root_of(export);
        fixture.call::<Fattr, ()>(NfsProcedure::Getattr, &root).status()
    };
    fixture.service.exports.name_service_timeout = Duration::from_millis(10);
    assert_eq!(status(&fixture, 1), NfsStat3::Jukebox);
    assert_eq!(status(&fixture, 2), NfsStat3::Ok, "everybody may, whatever the name");
    fixture.service.manage_groups().unwrap();
    assert_eq!(status(&fixture, 2), NfsStat3::Jukebox, "now it takes the user's groups");
    released.store(true, Ordering::Release);
    fixture.service.exports.name_service_timeout = Duration::from_secs(60);
    assert_eq!((status(&fixture, 1), status(&fixture, 2)), (NfsStat3::Ok, NfsStat3::Ok));
}
