//! The Network Status Monitor, version 1 (XNFS, chapter "Network Status Monitor Protocol"): hosts
//! notify each other of restarts.
//!
//! A host has a state number: odd while it is up, larger after each restart. A lock manager has its
//! own host's monitor watch (MON) its peers; a restarted host notifies those that watched it
//! (NOTIFY), and their monitors call their lock managers ([`NsmStatus`]).

use curt_xdr::{Opaque, Xdr};

use crate::operation::procedures;

/// The RPC program number.
pub const PROGRAM: u32 = 100_024;
/// The version of the program.
pub const VERSION: u32 = 1;
/// Maximum length of a host's name in bytes (`SM_MAXSTRLEN`).
pub const NAME_MAX: usize = 1024;
/// Length of the bytes that a lock manager gets back with a notification (`SM_PRIV_SIZE`).
pub const PRIVATE_BYTES: usize = 16;

procedures! {
    /// A procedure of the program.
    NsmProcedure, "SM_";
    Null = 0, "NULL", "nothing";
    Stat = 1, "STAT", "whether a host can be monitored";
    Mon = 2, "MON", "monitors a host";
    Unmon = 3, "UNMON", "ends monitoring of a host";
    UnmonAll = 4, "UNMON_ALL", "ends monitoring of all hosts for a lock manager";
    SimuCrash = 5, "SIMU_CRASH", "does what follows a restart";
    Notify = 6, "NOTIFY", "tells that a host was restarted";
}

/// A host's name.
pub type HostName<'a> = Opaque<'a, NAME_MAX>;

/// The argument of STAT (`sm_name`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct MonitoredName<'a>(pub HostName<'a>);

/// The procedure of a lock manager that is called when a monitored host was restarted; the argument
/// of UNMON_ALL and SIMU_CRASH (`my_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MonitorCallback<'a> {
    /// The lock manager's host.
    pub name: HostName<'a>,
    /// Its program.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// The procedure; its argument is an [`NsmStatus`].
    pub procedure: u32,
}

/// The argument of UNMON (`mon_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MonitorId<'a> {
    /// The monitored host.
    pub name: HostName<'a>,
    /// The monitoring program.
    pub callback: MonitorCallback<'a>,
}

/// The argument of MON (`mon`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MonArguments<'a> {
    /// The monitored host, and the program that monitors it.
    pub id: MonitorId<'a>,
    /// Bytes of the lock manager.
    pub private: [u8; PRIVATE_BYTES],
}

/// Whether a host is monitored (`sm_res`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum MonitorResult {
    /// The host is monitored (`STAT_SUCC`).
    Success = 0,
    /// The host is not monitored (`STAT_FAIL`).
    Failure = 1,
}

/// The result of STAT and MON (`sm_stat_res`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MonResult {
    /// Whether it succeeded.
    pub result: MonitorResult,
    /// The monitor's own state number.
    pub state: i32,
}

/// The result of UNMON and UNMON_ALL: the monitor's own state number (`sm_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MonitorState(pub i32);

/// The argument of NOTIFY (`stat_chge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct StateChange<'a> {
    /// The restarted host, as it calls itself.
    pub name: HostName<'a>,
    /// Its new state number.
    pub state: i32,
}

/// The state of a monitored host, as a lock manager gets it (`status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NsmStatus<'a> {
    /// The host.
    pub name: HostName<'a>,
    /// Its new state number.
    pub state: i32,
    /// The bytes of MON.
    pub private: [u8; PRIVATE_BYTES],
}
