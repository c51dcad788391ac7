//! Name services that only the C library can query (nsswitch): host look-ups that distinguish "no
//! such host" from "no answer", reverse look-ups, netgroups and users' groups.
//!
//! JUSTIFICATION: nsswitch.conf configures which files, directories and servers define netgroups
//! and groups, and only the C library loads its modules. Without it, the administrator's
//! configuration would not apply.
#![allow(unsafe_code, reason = "calls of the C library, see the justification above")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::IpAddr;

use parking_lot::Mutex;

/// Maximum length of a name from a reverse look-up in bytes, with its NUL (NI_MAXHOST).
const NAME_BYTES: usize = 1025;
/// Maximum number of groups of a user (NGROUPS_MAX of Linux).
const GROUPS_MAX: usize = 65_536;
/// Size of the buffer for one line of the user database, in bytes.
const USER_LINE_BYTES: usize = 64 << 10;

/// Held during queries of netgroups.
static NETGROUPS: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    /// Not in the libc crate: see innetgr(3).
    fn innetgr(
        group: *const c_char,
        host: *const c_char,
        user: *const c_char,
        domain: *const c_char,
    ) -> c_int;
}

/// The name of an address by the reverse look-up, which the zone's owner may have invented.
/// `Some(None)`: the address has no name; `None`: no responsible service answered.
pub(crate) fn name_of(address: IpAddr) -> Option<Option<String>> {
    let mut name = [0; NAME_BYTES];
    let status = match address {
        IpAddr::V4(address) => {
            // SAFETY: all bits zero are a socket address of this type.
            let mut socket: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            socket.sin_family = libc::sa_family_t::try_from(libc::AF_INET).ok()?;
            socket.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
            reverse(&raw const socket, &mut name)
        }
        IpAddr::V6(address) => {
            // SAFETY: all bits zero are a socket address of this type.
            let mut socket: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            socket.sin6_family = libc::sa_family_t::try_from(libc::AF_INET6).ok()?;
            socket.sin6_addr.s6_addr = address.octets();
            reverse(&raw const socket, &mut name)
        }
    };
    match status {
        0 => {}
        libc::EAI_AGAIN | libc::EAI_SYSTEM | libc::EAI_MEMORY => return None,
        _ => return Some(None),
    }
    let name = CStr::from_bytes_until_nul(&name).ok();
    Some(name.and_then(|name| name.to_str().ok()).map(str::to_owned))
}

fn reverse<T>(socket: *const T, name: &mut [u8; NAME_BYTES]) -> c_int {
    let length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let room = libc::socklen_t::try_from(NAME_BYTES).unwrap_or(0);
    // SAFETY: `socket` points to a whole socket address of `length` bytes, `name` has `room` bytes,
    // and no service name is asked for.
    unsafe {
        libc::getnameinfo(
            socket.cast(),
            length,
            name.as_mut_ptr().cast(),
            room,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    }
}

/// The addresses of a host: an empty list if there is no such host, `None` if no responsible
/// service answered.
pub(crate) fn addresses_of(host: &str) -> Option<Vec<IpAddr>> {
    let Ok(host) = CString::new(host) else {
        return Some(Vec::new());
    };
    // SAFETY: all bits zero are hints that ask for everything.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut list = std::ptr::null_mut();
    // SAFETY: a string with an end, hints and a place for the list, all of which live until the
    // call returns.
    let status =
        unsafe { libc::getaddrinfo(host.as_ptr(), std::ptr::null(), &raw const hints, &raw mut list) };
    match status {
        0 => {}
        libc::EAI_AGAIN | libc::EAI_SYSTEM | libc::EAI_MEMORY => return None,
        _ => return Some(Vec::new()),
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: the list is the C library's and is not freed before the loop ended.
    while let Some(one) = unsafe { next.as_ref() } {
        match one.ai_family {
            libc::AF_INET => {
                // SAFETY: the family says that it is a socket address of this type.
                let address = unsafe { &*one.ai_addr.cast::<libc::sockaddr_in>() };
                addresses.push(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()));
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is a socket address of this type.
                let address = unsafe { &*one.ai_addr.cast::<libc::sockaddr_in6>() };
                addresses.push(IpAddr::from(address.sin6_addr.s6_addr));
            }
            _ => {}
        }
        next = one.ai_next;
    }
    // SAFETY: it came from getaddrinfo, and nothing of it is used any longer.
    unsafe { libc::freeaddrinfo(list) };
    Some(addresses)
}

/// Errno values of this thread's last call that mean that a name service could not be queried;
/// look-ups leave other values, too.
const UNASKED: [c_int; 9] = [
    libc::EAGAIN,
    libc::ECONNREFUSED,
    libc::EHOSTUNREACH,
    libc::EMFILE,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::ENFILE,
    libc::ENOMEM,
    libc::ETIMEDOUT,
];

fn forget_errors() {
    // SAFETY: it has no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is a place of this thread's own.
    unsafe { *place = 0 };
}

/// Whether a name service could not be queried since errno was cleared, for calls that cannot
/// report it otherwise.
fn was_unasked() -> bool {
    let error = std::io::Error::last_os_error().raw_os_error();
    error.is_some_and(|error| UNASKED.contains(&error))
}

/// Whether a netgroup contains a machine with this name (or address, as text); `None` if no
/// responsible service answered, as far as the C library reports it.
pub(crate) fn in_netgroup(group: &str, host: &str) -> Option<bool> {
    let (Ok(group), Ok(host)) = (CString::new(group), CString::new(host)) else {
        return Some(false);
    };
    let any = std::ptr::null();
    // The C library does not permit two threads to query netgroups at once (innetgr(3): MT-Unsafe
    // race:netgrent).
    let _alone = NETGROUPS.lock();
    forget_errors();
    // SAFETY: both are NUL-terminated strings, null means any user and any domain, and the lock
    // excludes other threads of this process.
    let has = unsafe { innetgr(group.as_ptr(), host.as_ptr(), any, any) == 1 };
    (has || !was_unasked()).then_some(has)
}

/// All groups of a user, the main one first. `Some(None)`: there is no such user; `None`: no
/// responsible service answered.
pub(crate) fn groups_of(uid: u32) -> Option<Option<Vec<u32>>> {
    let mut line = vec![0; USER_LINE_BYTES];
    // SAFETY: all bits zero are a record of this type, which is filled before it is used.
    let mut user: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to values that live until the end of this function, and `line` has
    // the bytes it is said to have.
    let status =
        unsafe { libc::getpwuid_r(uid, &raw mut user, line.as_mut_ptr(), line.len(), &raw mut found) };
    // "No such user" is no error (POSIX); modules of the C library may leave ENOENT when their
    // server does not answer.
    if status != 0 {
        return None;
    }
    if found.is_null() {
        return Some(None);
    }
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = c_int::try_from(groups.len()).ok()?;
        forget_errors();
        // SAFETY: the name is a string within `line`, and `groups` has room for `count` numbers.
        let status =
            unsafe { libc::getgrouplist(user.pw_name, user.pw_gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).ok()?;
        if status >= 0 {
            groups.truncate(count);
            // An unreachable database is skipped without an error.
            return (!was_unasked()).then_some(Some(groups));
        }
        if groups.len() >= GROUPS_MAX {
            return None;
        }
        groups.resize(count.clamp(groups.len() * 2, GROUPS_MAX), 0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn the_systems_own_files_are_asked() {
        assert_eq!(groups_of(0).flatten().unwrap().first(), Some(&0));
        assert_eq!(groups_of(4_000_000_000), Some(None));
        assert_eq!(name_of("127.0.0.1".parse().unwrap()).flatten().as_deref(), Some("localhost"));
        assert_eq!(in_netgroup("no-such-netgroup", "localhost"), Some(false));
        assert_eq!(in_netgroup("nul\0", "localhost"), Some(false));
    }
}
