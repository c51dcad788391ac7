//! Counts the system calls of a process by tracing it.
//!
//! JUSTIFICATION: ptrace has no safe binding; the kernel has no other counter of system calls that
//! each process may read.
#![allow(unsafe_code, reason = "ptrace, and a child that asks to be traced")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The process calls this to mark begin and end of counting.
pub(crate) const MARK: u64 = libc::SYS_getppid as u64;

/// Runs `command` and returns the numbers of system calls between marks, and whether it succeeded.
pub(crate) fn count(command: &mut Command) -> io::Result<(Vec<u64>, bool)> {
    let ask = || {
        // SAFETY: the call accesses no memory; it is the only one between fork and exec.
        done(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
    };
    // SAFETY: `ask` makes one system call and accesses no memory of the parent.
    let child = unsafe { command.pre_exec(ask) }.spawn()?;
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let (mut counts, mut count) = (Vec::new(), None);
    let mut status = wait(pid)?;
    // SAFETY: the options are a number.
    done(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_TRACESYSGOOD) })?;
    while libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        let is_call = signal == libc::SIGTRAP | 0x80;
        if is_call && let Some(number) = entered(pid)? {
            if number == MARK {
                count = match count.take() {
                    None => Some(0),
                    Some(count) => {
                        counts.push(count);
                        None
                    }
                };
            } else if let Some(count) = &mut count {
                *count += 1;
            }
        }
        let pass_on = if is_call || signal == libc::SIGTRAP { 0 } else { signal };
        // SAFETY: the signal is a number.
        done(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, pass_on) })?;
        status = wait(pid)?;
    }
    Ok((counts, libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0))
}

/// The system call that the process has just entered; `None` at an exit.
fn entered(pid: libc::pid_t) -> io::Result<Option<u64>> {
    // SAFETY: zero is valid for all fields of this structure of integers.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes to `info`, which outlives the call.
    done(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, &raw mut info) })?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: at an entry the kernel filled this member.
    Ok(Some(unsafe { info.u.entry.nr }))
}

fn wait(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    done(waited.into()).map(|()| status)
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
