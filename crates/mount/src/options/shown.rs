//! Settings written out, defaults included, in the order and spelling of nfs(5)'s /proc/mounts lines.

use std::fmt::Write as _;

use curt_policy::{AccessMode, Interval, LookupCache, PlusMode, RacyGuard};
use curt_rpc::client::{AddressFamily, Hardness};

use super::settings::{Allow, Atime, LocalLocks, Security, Settings};

/// The options in force, such that reading them back gives the same settings.
#[must_use]
pub fn shown(settings: &Settings) -> String {
    let mut text = String::new();
    generic(&mut text, settings);
    put(&mut text, format_args!("{}", shown_beside_the_kernel(settings)));
    text
}

/// The options in force that the kernel knows nothing of: what /run/mount/utab adds to mountinfo.
#[must_use]
pub fn shown_beside_the_kernel(settings: &Settings) -> String {
    let mut text = String::new();
    transport(&mut text, settings);
    cache(&mut text, settings);
    let memory = &settings.memory;
    for (name, value) in [("names_max", memory.names), ("dirty_max", memory.dirty_bytes)] {
        value
            .into_iter()
            .for_each(|value| put(&mut text, format_args!("{name}={value}")));
    }
    text
}

fn put(text: &mut String, option: std::fmt::Arguments<'_>) {
    if !text.is_empty() {
        text.push(',');
    }
    // Writing to a String cannot fail.
    let _ = text.write_fmt(option);
}

fn generic(text: &mut String, settings: &Settings) {
    let generic = &settings.generic;
    put(
        text,
        format_args!("{}", if generic.read_only { "ro" } else { "rw" }),
    );
    let flags = [
        ("nosuid", generic.nosuid),
        ("nodev", generic.nodev),
        ("noexec", generic.noexec),
        ("sync", generic.sync),
        ("dirsync", generic.dirsync),
        ("nodiratime", generic.nodiratime),
    ];
    for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
        put(text, format_args!("{name}"));
    }
    let atime = match generic.atime {
        Atime::Relative => "relatime",
        Atime::Never => "noatime",
        Atime::Strict => "strictatime",
    };
    put(text, format_args!("{atime}"));
    match generic.allow {
        Allow::Default => {}
        Allow::Other => put(text, format_args!("allow_other")),
        Allow::Root => put(text, format_args!("allow_root")),
    }
}

fn transport(text: &mut String, settings: &Settings) {
    let (transport, server) = (&settings.transport, &settings.server);
    put(text, format_args!("vers=3"));
    for (name, bytes) in [("rsize", transport.rsize), ("wsize", transport.wsize)] {
        bytes
            .into_iter()
            .for_each(|bytes| put(text, format_args!("{name}={bytes}")));
    }
    put(
        text,
        format_args!(
            "{}",
            match transport.hardness {
                Hardness::Hard => "hard",
                Hardness::Soft => "soft",
                Hardness::SoftErr => "softerr",
            }
        ),
    );
    put(
        text,
        format_args!(
            "timeo={},retrans={},nconnect={}",
            transport.timeo, transport.retrans, transport.nconnect
        ),
    );
    match transport.reserved_port {
        Some(true) => put(text, format_args!("resvport")),
        Some(false) => put(text, format_args!("noresvport")),
        None => {}
    }
    if transport.softreval {
        put(text, format_args!("softreval"));
    }
    for (name, family) in [("proto", server.family), ("mountproto", server.mount_family)] {
        match family {
            AddressFamily::Any => {}
            AddressFamily::V4 => put(text, format_args!("{name}=tcp")),
            AddressFamily::V6 => put(text, format_args!("{name}=tcp6")),
        }
    }
    for (name, port) in [("port", server.port), ("mountport", server.mount_port)] {
        port.into_iter()
            .for_each(|port| put(text, format_args!("{name}={port}")));
    }
    let hosts = [
        ("addr", &server.address),
        ("mounthost", &server.mount_host),
        ("mountaddr", &server.mount_address),
    ];
    for (name, host) in hosts {
        host.iter()
            .for_each(|host| put(text, format_args!("{name}={host}")));
    }
    put(
        text,
        format_args!(
            "sec={}",
            if settings.security == Security::Sys {
                "sys"
            } else {
                "none"
            }
        ),
    );
    let local = match settings.local_locks {
        LocalLocks {
            posix: false,
            flock: false,
        } => "none",
        LocalLocks {
            posix: true,
            flock: true,
        } => "all",
        LocalLocks {
            posix: false,
            flock: true,
        } => "flock",
        LocalLocks {
            posix: true,
            flock: false,
        } => "posix",
    };
    put(text, format_args!("local_lock={local}"));
}

fn cache(text: &mut String, settings: &Settings) {
    let cache = &settings.cache;
    let timers = |text: &mut String, kind: &str, interval: Interval| {
        let (min, max) = (interval.min.as_secs(), interval.max.as_secs());
        put(text, format_args!("ac{kind}min={min},ac{kind}max={max}"));
    };
    timers(text, "reg", cache.files);
    timers(text, "dir", cache.directories);
    if !cache.attribute_cache {
        put(text, format_args!("noac"));
    }
    put(
        text,
        format_args!("{}", if cache.close_to_open { "cto" } else { "nocto" }),
    );
    put(text, format_args!("sloppycto={}", cache.sloppy_open.as_secs()));
    let access = if cache.access == AccessMode::Server {
        "accesscheck"
    } else {
        "noaccesscheck"
    };
    put(text, format_args!("{access}"));
    let names = match cache.names {
        LookupCache::All => "all",
        LookupCache::Positive => "pos",
        LookupCache::None => "none",
    };
    let (present, missing) = (
        cache.name_lifetime.as_secs(),
        cache.missing_name_lifetime.as_secs(),
    );
    put(
        text,
        format_args!("lookupcache={names},nametimeo={present},negnametimeo={missing}"),
    );
    let guard = match cache.racy_guard {
        RacyGuard::Auto => "auto",
        RacyGuard::On => "on",
        RacyGuard::Off => "off",
    };
    put(text, format_args!("neg_racy_guard={guard}"));
    let plus = match cache.plus {
        PlusMode::Auto => "rdirplus",
        PlusMode::Never => "rdirplus=none",
        PlusMode::Always => "rdirplus=force",
    };
    put(text, format_args!("{plus}"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use super::super::parse;
    use super::shown;

    #[test]
    fn what_is_shown_reads_back_the_same() {
        for options in [
            "",
            "ro,nosuid,noexec,noatime,sync,nodiratime,allow_root",
            "softerr,softreval,timeo=7,nconnect=4,noresvport,proto=tcp6,port=1,mountport=2,addr=::1,mounthost=m,rsize=8192",
            "noac,nocto,sloppycto=3,noaccesscheck,lookupcache=pos,nonegnamecache,neg_racy_guard=off,nordirplus",
            "actimeo=600,local_lock=flock,sec=none,names_max=5000,dirty_max=64M",
        ] {
            let settings = parse(options).unwrap().settings;
            assert_eq!(
                parse(&shown(&settings)).unwrap().settings,
                settings,
                "{options}: {}",
                shown(&settings)
            );
        }
    }
}
