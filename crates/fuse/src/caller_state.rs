//! Whether a waiting thread is being killed or exits, from /proc/TID/status and /proc/TID/stat.
//!
//! A thread that no longer exists counts as being killed; one whose files cannot be read does not.

use std::{fs, io};

/// SIGKILL's bit in the signal sets of /proc. A fatal signal of any kind becomes SIGKILL for each
/// thread of its process (Linux, kernel/signal.c, `complete_signal`).
const KILL: u64 = 1 << 8;
/// The task is exiting (Linux, include/linux/sched.h, `PF_EXITING`).
const EXITING: u64 = 4;
/// The task is a kernel thread (Linux, include/linux/sched.h, `PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Whether thread `tid` has a fatal signal pending.
pub(crate) fn is_being_killed(tid: u32) -> bool {
    tid != 0 && test_file(fs::read_to_string(format!("/proc/{tid}/status")), killed)
}

/// Whether thread `tid` is exiting.
pub(crate) fn is_exiting(tid: u32) -> bool {
    let exiting = |stat: &str| flags(stat).is_some_and(|flags| flags & EXITING != 0);
    tid != 0 && test_file(fs::read_to_string(format!("/proc/{tid}/stat")), exiting)
}

/// Whether thread `tid` is a kernel thread; `false` if unknown.
pub(crate) fn is_of_kernel(tid: u32) -> bool {
    tid != 0
        && fs::read_to_string(format!("/proc/{tid}/stat"))
            .is_ok_and(|stat| flags(&stat).is_some_and(|flags| flags & KERNEL_THREAD != 0))
}

/// Whether thread `tid` has this name (a program's, at most 15 bytes); `false` if unknown.
pub(crate) fn is_called(tid: u32, name: &str) -> bool {
    tid != 0 && fs::read_to_string(format!("/proc/{tid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

fn test_file(read: io::Result<String>, test: impl FnOnce(&str) -> bool) -> bool {
    match read {
        Ok(text) => test(&text),
        // ESRCH: it ended between open and read.
        Err(error) => {
            error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
        }
    }
}

fn killed(status: &str) -> bool {
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .any(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & KILL != 0))
}

fn flags(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain any character. The fields after it are state, ppid,
    // pgrp, session, tty_nr, tpgid, flags (proc(5)).
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sigkill_counts_in_either_set() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0100\n")
        };
        let none = "0000000000000000";
        assert!(!killed(&status(none, none)));
        assert!(killed(&status("0000000000000100", none)));
        assert!(killed(&status(none, "0000000000002100")));
        assert!(!killed(&status("0000000000002000", "0000000000010000")));
    }

    #[test]
    fn a_name_full_of_parentheses_does_not_hide_the_flags() {
        assert_eq!(flags("12 (a) b ( c) R 1 2 3 4 5 4194308 0"), Some(4_194_308));
        assert_eq!(flags("12 (a) 4 4 4 4 4 4 4) R 1 2 3 4 5 4194304 0"), Some(4_194_304));
        assert_eq!(flags("12 (a"), None);
    }

    #[test]
    fn a_thread_is_called_what_it_is() {
        let name = fs::read_to_string("/proc/thread-self/comm").expect("/proc is there");
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(is_called(tid, name.trim_end()));
        assert!(!is_called(tid, "umount") && !is_called(0, name.trim_end()));
        assert!(!is_called(u32::MAX, name.trim_end()));
    }

    #[test]
    fn this_thread_lives_and_a_missing_one_does_not() {
        let own = std::process::id();
        assert!(!is_being_killed(own) && !is_exiting(own));
        assert!(!is_being_killed(0) && !is_exiting(0) && !is_of_kernel(0) && !is_of_kernel(own));
        // Beyond pid_max.
        assert!(is_being_killed(u32::MAX) && is_exiting(u32::MAX));
    }
}
