//! Mount requests to services on loopback with scripted replies.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{thread, time::Duration};

use curt_rpc::client::{AddressFamily, NoTransportEvents, ServerName};

use super::{
    scripted::{ScriptedAnswers, ScriptedHost, kind},
    *,
};
use crate::{
    protocol::{Pathconf, mounting::MountRetry},
    threads::MonotonicClock,
};

#[test]
fn the_export_must_offer_the_flavour_in_use() {
    let sys = crate::caller::RpcSecurity::sys().credential(&crate::caller::Caller::new(0, 0, &[]));
    for (offered, takes_sys, takes_none) in [
        (&[][..], true, true),
        (&[1], true, false),
        (&[390_003, 1], true, false),
        (&[0], true, true),
        (&[390_003], false, false),
    ] {
        assert_eq!(check_flavors(offered, &sys).is_ok(), takes_sys, "{offered:?}");
        assert_eq!(check_flavors(offered, &RpcCredential::None).is_ok(), takes_none, "{offered:?}");
    }
    let text = check_flavors(&[390_003, 7], &sys).unwrap_err().to_string();
    assert!(text.contains("krb5, flavour 7"), "{text}");
}

#[test]
fn a_name_without_an_address_is_an_unknown_host() {
    let export = ExportSource {
        path: b"/".to_vec(),
        transport: TcpOptions::new(ServerName::Name("no-such-host.invalid".into()), PortSource::Fixed(1)),
        nfs_port: Some(1),
        mount_server: None,
        mount_family: AddressFamily::Any,
        mount_port: Some(1),
        credential: RpcCredential::None,
        timeout: Duration::from_secs(10),
    };
    let error = mounted(&export);
    assert_eq!(error.map(drop), Err(MountError::UnknownHost("no-such-host.invalid".into())));
}

fn export_of(host: &ScriptedHost, nfs_port: Option<u16>, mount_port: Option<u16>) -> ExportSource {
    ExportSource {
        path: b"/export".to_vec(),
        transport: TcpOptions::new(ServerName::Address(host.address.into()), PortSource::Fixed(0)),
        nfs_port,
        mount_server: None,
        mount_family: AddressFamily::Any,
        mount_port,
        credential: crate::caller::RpcSecurity::sys().credential(&crate::caller::Caller::new(0, 0, &[])),
        timeout: Duration::from_secs(20),
    }
}

fn mounted(export: &ExportSource) -> Result<MountedExport, MountError> {
    mount_until(export, &Interrupt::never())
}

fn mount_until(export: &ExportSource, interrupt: &Interrupt) -> Result<MountedExport, MountError> {
    let mount = Nfs3Mount { locks: &|| None, clock: Arc::new(MonotonicClock) };
    super::mount(export, mount, Arc::new(NoTransportEvents), interrupt)
}

/// The calls (program and procedure) that a host got until a mount of it ended.
fn asked_until_end(mounted: &MountedExport, host: &ScriptedHost) -> Vec<(u32, u32)> {
    mounted.protocol.end(Duration::from_secs(20));
    host.asked.lock().clone()
}

#[test]
fn a_mount_with_given_ports_needs_no_portmapper() {
    let host = ScriptedHost::start(1, false, |_| kind()).unwrap();
    let export = export_of(&host, Some(host.port), Some(host.port));
    let mounted = mounted(&export).unwrap();
    assert_eq!(mounted.root.as_bytes(), b"root");
    assert_eq!((mounted.limits.write_max, mounted.limits.links), (1 << 19, true));
    assert_eq!(mounted.path_limits, Pathconf::default());
    assert_eq!(mounted.protocol.rpc().statistics().operations(), 2, "FSINFO and PATHCONF are counted");
    let asked = asked_until_end(&mounted, &host);
    assert_eq!(asked, [(100_005, 1), (100_003, 19), (100_003, 20), (100_005, 3)]);
}

#[test]
fn without_a_portmapper_mount_is_tried_at_the_nfs_port() {
    let host = ScriptedHost::start(2, false, |_| kind()).unwrap();
    let mounted = mounted(&export_of(&host, Some(host.port), None)).unwrap();
    let asked = asked_until_end(&mounted, &host);
    assert_eq!(asked, [(100_005, 1), (100_003, 19), (100_003, 20), (100_005, 3)]);
}

#[test]
fn without_portmapper_and_ports_the_refused_connection_is_reported() {
    let host = ScriptedHost::start(3, false, |_| kind()).unwrap();
    let error = mounted(&export_of(&host, None, None)).unwrap_err();
    let MountError::Refused { service: ServiceKind::Portmapper, port: 111, .. } = error else {
        panic!("{error:?}")
    };
}

#[test]
fn ports_come_from_the_portmapper() {
    let Some(host) = ScriptedHost::start(4, true, |port| ScriptedAnswers {
        mount_port: Some(port),
        nfs_port: Some(port),
        ..kind()
    }) else {
        return eprintln!("no right to listen at port 111: not tested");
    };
    let mounted = mounted(&export_of(&host, None, None)).unwrap();
    assert_eq!(mounted.transport.options().server, ServerName::Address(host.address.into()));
    let asked = host.asked.lock().clone();
    assert_eq!(asked, [(100_000, 3), (100_005, 1), (100_000, 3), (100_003, 19), (100_003, 20)]);
}

#[test]
fn the_error_names_the_service_that_is_not_registered() {
    for (number, mount_known, missing) in [(5, false, ServiceKind::Mount), (6, true, ServiceKind::Nfs)] {
        let ports = |port| ScriptedAnswers { mount_port: Some(port).filter(|_| mount_known), ..kind() };
        let Some(host) = ScriptedHost::start(number, true, ports) else {
            return eprintln!("no right to listen at port 111: not tested");
        };
        let error = mounted(&export_of(&host, None, None)).unwrap_err();
        let MountError::NotRegistered { service, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*service, missing);
        assert!(error.to_string().contains("Program not registered"), "{error}");
    }
}

#[test]
fn refusals_of_mnt_and_fsinfo_are_distinct_errors() {
    use curt_proto::mount3::MountStat3;
    let cases = [
        (7, MountStat3::Acces, MountError::AccessDenied { status: MountStat3::Acces }),
        (8, MountStat3::Noent, MountError::NoSuchPath),
        (9, MountStat3::Notdir, MountError::NotADirectory),
        (10, MountStat3::Serverfault, MountError::Mount(MountStat3::Serverfault)),
    ];
    for (number, mount, expected) in cases {
        let host = ScriptedHost::start(number, false, |_| ScriptedAnswers { mount, ..kind() }).unwrap();
        let error = mounted(&export_of(&host, Some(host.port), Some(host.port))).unwrap_err();
        assert_eq!(error, expected);
    }
    let stale = ScriptedAnswers { fsinfo: nfs3::NfsStat3::Stale, ..kind() };
    let host = ScriptedHost::start(11, false, |_| stale).unwrap();
    let error = mounted(&export_of(&host, Some(host.port), Some(host.port))).unwrap_err();
    assert_eq!((error.retry(), error), (MountRetry::Thrice, MountError::Nfs(nfs3::NfsStat3::Stale)));
}

#[test]
fn other_versions_and_flavours_and_closed_ports_are_distinct_errors() {
    let host = ScriptedHost::start(12, false, |_| ScriptedAnswers { wrong_version: true, ..kind() }).unwrap();
    let error = mounted(&export_of(&host, Some(host.port), Some(host.port))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("requested NFS version or transport protocol is not supported"), "{text}");
    assert!(text.contains("versions 4 to 4"), "{text}");
    let closed = Some(1);
    let error = mounted(&export_of(&host, closed, Some(host.port))).unwrap_err();
    let MountError::Refused { service: ServiceKind::Nfs, port: 1, .. } = error else { panic!("{error:?}") };
    let host =
        ScriptedHost::start(13, false, |_| ScriptedAnswers { flavors: vec![390_003], ..kind() }).unwrap();
    let error = mounted(&export_of(&host, Some(host.port), Some(host.port))).unwrap_err();
    assert_eq!(error, MountError::Flavors { offered: vec![390_003] });
}

#[test]
fn a_server_that_accepts_calls_without_replying_times_out() {
    let host = ScriptedHost::start(14, false, |_| ScriptedAnswers { silent: true, ..kind() }).unwrap();
    let hold = host.hold();
    let mut export = export_of(&host, Some(host.port), Some(host.port));
    export.timeout = Duration::from_millis(500);
    let error = loop {
        let error = mounted(&export).unwrap_err();
        if host.asked.lock().contains(&(nfs3::PROGRAM, 19)) {
            break error;
        }
        // The other services did not reply within this time.
        export.timeout *= 2;
        assert!(export.timeout < Duration::from_secs(60), "{error:?}");
    };
    drop(hold);
    let MountError::TimedOut { service: ServiceKind::Nfs, .. } = error else { panic!("{error:?}") };
}

#[test]
fn mounting_can_be_interrupted() {
    let host = ScriptedHost::start(15, false, |_| ScriptedAnswers { silent: true, ..kind() }).unwrap();
    let hold = host.hold();
    let export = export_of(&host, Some(host.port), Some(host.port));
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let mounting = scope.spawn(|| mount_until(&export, &interrupt).map(drop));
        while host.asked.lock().len() < 2 {
            thread::yield_now();
        }
        interrupt.raise();
        assert_eq!(mounting.join().unwrap(), Err(MountError::Interrupted));
    });
    drop(hold);
}
