//! Settings as text, defaults included, in the order and spelling of the lines of /proc/mounts
//! (nfs(5)).

use std::fmt::{Display, Write as _};

use curt_policy::locks::LockOrder;
use curt_policy::{AccessMode, ListingMode, ReaddirplusMode};
use curt_rpc::client::{AddressFamily, RecoveryMode};

use super::settings::{
    AllowedUsers, Atime, FigureSettings, LockSettings, NfsVersion, SecurityFlavor, Settings,
};
use super::table::{FILL_MODES, LOCAL_LOCKS, LOOKUP_CACHES, RACY_GUARDS};
use super::value_syntax::word_of;

/// The options in force; parsing them returns the same settings.
#[must_use]
pub fn format_options(settings: &Settings) -> String {
    let mut list = OptionString::default();
    list.generic(settings);
    list.word(&format_utab_options(settings));
    list.0
}

/// The options in force that the kernel does not store: those that /run/mount/utab adds to
/// mountinfo.
#[must_use]
pub fn format_utab_options(settings: &Settings) -> String {
    let mut list = OptionString::default();
    list.transport(settings);
    list.server(settings);
    list.security(settings);
    list.cache(settings);
    list.optional("names_max", settings.memory.names);
    list.optional("dirty_max", settings.memory.dirty_bytes);
    list.optional("listing_max", settings.memory.listing_bytes);
    list.figures(&settings.figures);
    for word in &settings.passed_through {
        list.word(word);
    }
    list.0
}

/// Words with commas between them.
#[derive(Default)]
struct OptionString(String);

impl OptionString {
    fn word(&mut self, word: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(word);
    }

    fn value(&mut self, name: &str, value: impl Display) {
        self.word(name);
        // Writing to a String cannot fail.
        let _ = write!(self.0, "={value}");
    }

    fn optional(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.value(name, value);
        }
    }

    fn generic(&mut self, settings: &Settings) {
        let generic = &settings.generic;
        self.word(if generic.read_only { "ro" } else { "rw" });
        let flags = [
            ("nosuid", generic.nosuid),
            ("nodev", generic.nodev),
            ("dev", !generic.nodev),
            ("noexec", generic.noexec),
            ("sync", generic.sync),
            ("dirsync", generic.dirsync),
            ("nodiratime", generic.nodiratime),
        ];
        for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
            self.word(name);
        }
        self.word(match generic.atime {
            Atime::Relative => "relatime",
            Atime::Never => "noatime",
            Atime::Strict => "strictatime",
        });
        match generic.allow {
            AllowedUsers::Default => {}
            AllowedUsers::Other => self.word("allow_other"),
            AllowedUsers::Root => self.word("allow_root"),
        }
    }

    fn transport(&mut self, settings: &Settings) {
        let transport = &settings.transport;
        self.value("vers", settings.version.name());
        self.optional("rsize", transport.rsize);
        self.optional("wsize", transport.wsize);
        self.word(match transport.hardness {
            RecoveryMode::Hard => "hard",
            RecoveryMode::Soft => "soft",
            RecoveryMode::SoftErr => "softerr",
        });
        self.value("timeo", transport.timeo);
        self.value("retrans", transport.retrans);
        self.value("nconnect", transport.nconnect);
        match transport.reserved_port {
            Some(true) => self.word("resvport"),
            Some(false) => self.word("noresvport"),
            None => {}
        }
        if transport.softreval {
            self.word("softreval");
        }
    }

    fn figures(&mut self, figures: &FigureSettings) {
        if figures.mountstats != FigureSettings::default().mountstats {
            self.value("mountstats", figures.mountstats.as_secs());
        }
        self.optional("metrics", figures.metrics.as_ref());
        if figures.ring != FigureSettings::default().ring {
            self.value("ring", figures.ring);
        }
    }

    fn server(&mut self, settings: &Settings) {
        let server = &settings.server;
        for (name, family) in [("proto", server.family), ("mountproto", server.mount_family)] {
            match family {
                AddressFamily::Any => {}
                AddressFamily::V4 => self.value(name, "tcp"),
                AddressFamily::V6 => self.value(name, "tcp6"),
            }
        }
        self.optional("port", server.port);
        self.optional("mountport", server.mount_port);
        self.optional("addr", server.address.as_ref());
        self.optional("mounthost", server.mount_host.as_ref());
        self.optional("mountaddr", server.mount_address.as_ref());
    }

    fn security(&mut self, settings: &Settings) {
        let flavour = match settings.security {
            SecurityFlavor::Sys => "sys",
            SecurityFlavor::None => "none",
        };
        self.value("sec", flavour);
        self.value("local_lock", word_of(&settings.local_locks, LOCAL_LOCKS));
        let LockSettings { order, handoffs, lock_port, callback_ports } = settings.locks;
        if order == LockOrder::ServerFirst {
            self.value("locks", "server-first");
        }
        self.optional("lockhandoff", handoffs);
        self.optional("lockport", lock_port);
        self.optional("lockcallbackport", callback_ports.lock_manager);
        self.optional("statdport", callback_ports.status_monitor);
    }

    fn cache(&mut self, settings: &Settings) {
        let cache = &settings.cache;
        self.value("acregmin", cache.files.min.as_secs());
        self.value("acregmax", cache.files.max.as_secs());
        self.value("acdirmin", cache.directories.min.as_secs());
        self.value("acdirmax", cache.directories.max.as_secs());
        if !cache.attribute_cache {
            self.word("noac");
        }
        self.word(if cache.close_to_open { "cto" } else { "nocto" });
        self.value("sloppycto", cache.sloppy_open.as_secs());
        self.word(match cache.access {
            AccessMode::Server => "accesscheck",
            AccessMode::ModeBits => "noaccesscheck",
        });
        self.value("lookupcache", word_of(&cache.names, LOOKUP_CACHES));
        self.value("nametimeo", cache.name_lifetime.as_secs());
        self.value("negnametimeo", cache.missing_name_lifetime.as_secs());
        self.value("kernelnames", cache.kernel_names.as_secs_f64());
        self.value("neg_racy_guard", word_of(&cache.racy_guard, RACY_GUARDS));
        self.word(match cache.plus {
            ReaddirplusMode::Auto => "rdirplus",
            ReaddirplusMode::Never => "rdirplus=none",
            ReaddirplusMode::Always => "rdirplus=force",
        });
        self.value("dirfill", word_of(&cache.fill, FILL_MODES));
        if settings.version != NfsVersion::Three || !cache.delegations {
            self.word(if cache.delegations { "delegations" } else { "nodelegations" });
        }
        if cache.listing == ListingMode::Restart {
            self.word("readdir=restart");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use super::super::parse;
    use super::format_options;

    #[test]
    fn what_is_shown_reads_back_the_same() {
        for options in [
            "",
            "ro,nosuid,noexec,noatime,sync,nodiratime,allow_root",
            "softerr,softreval,timeo=7,nconnect=4,noresvport,proto=tcp6,port=1,mountport=2,addr=::1,mounthost=m,rsize=8192",
            "noac,nocto,sloppycto=3,noaccesscheck,lookupcache=pos,nonegnamecache,neg_racy_guard=off,nordirplus",
            "actimeo=600,local_lock=flock,sec=none,names_max=5000,dirty_max=64M,listing_max=16M,readdir=restart,dirfill=off",
            "mountstats=0,metrics=9049,ring=off",
            "kernelnames=0",
            "vers=4.1,nodelegations",
            "kernelnames=0.125",
            "ring=operation",
            "locks=server-first,lockhandoff=16,lockport=4045,lockcallbackport=4046,statdport=4047",
            "mountstats=60,metrics=unix:/run/figures.socket",
        ] {
            let settings = parse(options).unwrap().settings;
            assert_eq!(
                parse(&format_options(&settings)).unwrap().settings,
                settings,
                "{options}: {}",
                format_options(&settings)
            );
        }
    }
}
