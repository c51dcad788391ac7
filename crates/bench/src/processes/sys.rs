//! A child that ends with its parent, and the processor time of another process.
//!
//! JUSTIFICATION: a benchmark that is killed must not leave a mount and a server behind, and only
//! the child itself can request this from the kernel, between fork and exec. The clock of another
//! process counts nanoseconds, including threads that have ended; /proc counts hundredths of a
//! second, and rustix does not support that clock.
#![allow(unsafe_code, reason = "pre_exec(3) is unsafe by nature, and clock_gettime(2) of libc")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes the process of `command` receive SIGTERM when the thread that starts it ends.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let ask = || set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and allocates no memory, which is allowed between
    // fork and exec.
    unsafe { command.pre_exec(ask) }
}

/// The processor time used by all threads of a process.
///
/// # Errors
/// There is no such process.
pub fn processor_time(pid: u32) -> io::Result<Duration> {
    // clock_getcpuclockid(3): the inverted process id, and the scheduler's clock.
    const SCHEDULED: libc::clockid_t = 2;
    let pid = libc::clockid_t::try_from(pid).map_err(io::Error::other)?;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that lives while the call writes to it.
    let result = unsafe { libc::clock_gettime((!pid << 3) | SCHEDULED, &raw mut time) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanoseconds = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work_and_needs_a_process() {
        let own = std::process::id();
        let before = processor_time(own).expect("this process has a clock");
        while processor_time(own).is_ok_and(|now| now == before) {}
        assert!(processor_time(own).is_ok_and(|now| now > before));
        // One more than the kernel's maximum (PID_MAX_LIMIT).
        assert!(processor_time((1 << 22) + 1).is_err());
    }
}
