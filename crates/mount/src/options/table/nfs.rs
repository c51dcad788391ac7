//! The options of nfs(5).

use std::time::Duration;

use curt_policy::{LookupCache, ReaddirplusMode, TimeoutRange};
use curt_rpc::client::{AddressFamily, RecoveryMode};

use super::super::settings::{LocalLocks, NfsVersion, SecurityFlavor};
use super::super::value_syntax::{number, one_of, port, seconds, transfer};
use super::row::{OptionArity, OptionRow, flag, ignored, refused, refused_as, set, valued, valued_as};

const NOT_4_0: &str = "NFSv4.0 has no sessions and is not supported; mount with vers=4.1 or vers=4.2";
const NOT_2: &str = "the requested NFS version or transport protocol is not supported; mount with vers=3";
const NOT_UDP: &str =
    "the requested NFS version or transport protocol is not supported; mount with proto=tcp";
const NOT_RDMA: &str = "RDMA is not supported; mount with proto=tcp";
const NOT_KRB5: &str = "Kerberos is not supported by this version; mount with sec=sys";
const NOT_TLS: &str =
    "TLS is not supported by this version; mount with xprtsec=none over a network you trust";

const VERSIONS: &[&str] = &["3", "4", "4.1", "4.2"];
const VERSION_WORDS: &[(&str, NfsVersion)] = &[
    ("3", NfsVersion::Three),
    ("4", NfsVersion::Four),
    ("4.1", NfsVersion::FourOne),
    ("4.2", NfsVersion::FourTwo),
];

pub(in crate::options) const LOOKUP_CACHES: &[(&str, LookupCache)] = &[
    ("all", LookupCache::All),
    ("pos", LookupCache::Positive),
    ("positive", LookupCache::Positive),
    ("none", LookupCache::None),
];
pub(in crate::options) const LOCAL_LOCKS: &[(&str, LocalLocks)] = &[
    ("none", LocalLocks { posix: false, flock: false }),
    ("all", LocalLocks { posix: true, flock: true }),
    ("flock", LocalLocks { posix: false, flock: true }),
    ("posix", LocalLocks { posix: true, flock: false }),
];

/// Versions, transports, ports and retransmission.
pub(super) const PROTOCOL: &[OptionRow] = &[
    valued_as("nfsvers", VERSIONS, |s, v| set(&mut s.version, one_of(v, VERSION_WORDS)?)),
    refused_as("nfsvers", &["4.0"], NOT_4_0),
    refused("nfsvers", NOT_2),
    valued_as("vers", VERSIONS, |s, v| set(&mut s.version, one_of(v, VERSION_WORDS)?)),
    refused_as("vers", &["4.0"], NOT_4_0),
    refused("vers", NOT_2),
    flag("v3", |s, _| set(&mut s.version, NfsVersion::Three)),
    refused("v2", NOT_2),
    flag("v4", |s, _| set(&mut s.version, NfsVersion::Four)),
    refused("v4.0", NOT_4_0),
    flag("v4.1", |s, _| set(&mut s.version, NfsVersion::FourOne)),
    flag("v4.2", |s, _| set(&mut s.version, NfsVersion::FourTwo)),
    valued_as("minorversion", &["1"], |s, _| set(&mut s.version, NfsVersion::FourOne)),
    valued_as("minorversion", &["2"], |s, _| set(&mut s.version, NfsVersion::FourTwo)),
    refused("minorversion", NOT_4_0),
    valued_as("proto", &["tcp"], |s, _| set(&mut s.server.family, AddressFamily::V4)),
    valued_as("proto", &["tcp6"], |s, _| set(&mut s.server.family, AddressFamily::V6)),
    refused_as("proto", &["rdma*"], NOT_RDMA),
    refused("proto", NOT_UDP),
    flag("tcp", |s, _| set(&mut s.server.family, AddressFamily::V4)),
    refused("udp", NOT_UDP),
    refused("rdma", NOT_RDMA),
    valued("port", |s, v| set(&mut s.server.port, port(v)?)),
    valued("mountport", |s, v| set(&mut s.server.mount_port, port(v)?)),
    valued("mounthost", |s, v| set(&mut s.server.mount_host, Some(v.to_owned()))),
    valued_as("mountproto", &["tcp"], |s, _| set(&mut s.server.mount_family, AddressFamily::V4)),
    valued_as("mountproto", &["tcp6"], |s, _| set(&mut s.server.mount_family, AddressFamily::V6)),
    refused("mountproto", NOT_UDP),
    valued_as("mountvers", &["3"], |_, _| Ok(())),
    refused("mountvers", "MOUNT versions 1 and 2 cannot carry the handles of NFSv3; use mountvers=3"),
    valued("addr", |s, v| set(&mut s.server.address, Some(v.to_owned()))),
    valued("mountaddr", |s, v| set(&mut s.server.mount_address, Some(v.to_owned()))),
    flag("hard", |s, _| set(&mut s.transport.hardness, RecoveryMode::Hard)),
    flag("soft", |s, _| set(&mut s.transport.hardness, RecoveryMode::Soft)),
    flag("softerr", |s, _| set(&mut s.transport.hardness, RecoveryMode::SoftErr)),
    valued("timeo", |s, v| set(&mut s.transport.timeo, number(v, 1..=6000, " (tenths of a second)")?)),
    valued("retrans", |s, v| set(&mut s.transport.retrans, number(v, 0..=1000, "")?)),
    flag("softreval", |s, _| set(&mut s.transport.softreval, true)),
    flag("nosoftreval", |s, _| set(&mut s.transport.softreval, false)),
    valued("retry", |s, v| set(&mut s.transport.retry, Some(number(v, 0..=u32::MAX, " (minutes)")?))),
    flag("bg", |s, _| set(&mut s.transport.background, true)),
    flag("fg", |s, _| set(&mut s.transport.background, false)),
    valued("rsize", |s, v| set(&mut s.transport.rsize, transfer(v)?)),
    valued("wsize", |s, v| set(&mut s.transport.wsize, transfer(v)?)),
    valued("nconnect", |s, v| set(&mut s.transport.nconnect, number(v, 1..=16, "")?)),
    refused("max_connect", "all connections go to one address of the server; use nconnect"),
    refused("trunkdiscovery", "other addresses of the server are not looked for; use nconnect"),
    ignored("notrunkdiscovery", "other addresses of the server are not looked for"),
    flag("resvport", |s, _| set(&mut s.transport.reserved_port, Some(true))),
    flag("noresvport", |s, _| set(&mut s.transport.reserved_port, Some(false))),
];

/// The options for caching: contents and lifetimes.
pub(super) const CACHING: &[OptionRow] = &[
    flag("ac", |s, _| set(&mut s.cache.attribute_cache, true)),
    flag("noac", |s, _| set(&mut s.cache.attribute_cache, false)),
    valued("acregmin", |s, v| raise(&mut s.cache.files, seconds(v)?)),
    valued("acregmax", |s, v| lower(&mut s.cache.files, seconds(v)?)),
    valued("acdirmin", |s, v| raise(&mut s.cache.directories, seconds(v)?)),
    valued("acdirmax", |s, v| lower(&mut s.cache.directories, seconds(v)?)),
    valued("actimeo", |s, v| {
        let lifetime = seconds(v)?;
        let interval = TimeoutRange { min: lifetime, max: lifetime };
        s.cache.files = interval;
        set(&mut s.cache.directories, interval)
    }),
    flag("cto", |s, _| set(&mut s.cache.close_to_open, true)),
    flag("nocto", |s, _| set(&mut s.cache.close_to_open, false)),
    valued("lookupcache", |s, v| set(&mut s.cache.names, one_of(v, LOOKUP_CACHES)?)),
    OptionRow {
        takes: OptionArity::Either,
        ..valued("rdirplus", |s, v| {
            const WORDS: &[(&str, ReaddirplusMode)] = &[
                ("", ReaddirplusMode::Auto),
                ("none", ReaddirplusMode::Never),
                ("force", ReaddirplusMode::Always),
            ];
            set(&mut s.cache.plus, one_of(v, WORDS)?)
        })
    },
    flag("nordirplus", |s, _| set(&mut s.cache.plus, ReaddirplusMode::Never)),
];

/// Security, locks and the rest.
pub(super) const OTHER: &[OptionRow] = &[
    valued_as("sec", &["sys"], |s, _| set(&mut s.security, SecurityFlavor::Sys)),
    valued_as("sec", &["none"], |s, _| set(&mut s.security, SecurityFlavor::None)),
    refused_as("sec", &["krb5*"], NOT_KRB5),
    refused("sec", "the flavours of this version are sys and none"),
    OptionRow { values: &["none"], ..ignored("xprtsec", "nothing is encrypted by default") },
    refused("xprtsec", NOT_TLS),
    ignored("sharecache", "two mounts never share what they know"),
    ignored("nosharecache", "two mounts never share what they know"),
    flag("lock", |s, _| set(&mut s.local_locks, LocalLocks::default())),
    flag("nolock", |s, _| set(&mut s.local_locks, LocalLocks { posix: true, flock: true })),
    valued("local_lock", |s, v| set(&mut s.local_locks, one_of(v, LOCAL_LOCKS)?)),
    refused(
        "acl",
        "the NFSACL protocol is not supported by this version; leave it out (the server enforces its ACLs)",
    ),
    ignored("noacl", "the NFSACL protocol is not used"),
    ignored("intr", "every wait ends when its process is killed"),
    ignored("nointr", "every wait ends when its process is killed"),
    refused("namlen", "NFSv3 servers report the maximum length of names (PATHCONF); leave it out"),
    ignored("clientaddr", "the callback channel of NFSv4.1 and 4.2 is the session's own connection"),
    refused("migration", "file systems are not followed to other servers; leave it out"),
    ignored("nomigration", "file systems are not followed to other servers"),
    refused("fsc", "there is no cache on disk in this version; leave it out"),
    ignored("nofsc", "there is no cache on disk"),
    flag("sloppy", |s, _| set(&mut s.generic.sloppy, true)),
];

/// Sets a minimum; a maximum below it is raised.
#[expect(clippy::unnecessary_wraps, reason = "the rows' functions share one type with those that can fail")]
fn raise(interval: &mut TimeoutRange, min: Duration) -> Result<(), String> {
    *interval = TimeoutRange { min, max: min.max(interval.max) };
    Ok(())
}

/// Sets a maximum; a minimum above it is lowered.
#[expect(clippy::unnecessary_wraps, reason = "the rows' functions share one type with those that can fail")]
fn lower(interval: &mut TimeoutRange, max: Duration) -> Result<(), String> {
    *interval = TimeoutRange { min: max.min(interval.min), max };
    Ok(())
}
