//! Counts the system calls of a traced process.
//!
//! JUSTIFICATION: ptrace has no safe binding, and the kernel provides no count of system calls that
//! any process may read.
#![allow(unsafe_code, reason = "ptrace, and a child that asks to be traced")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

/// A thread of a traced process begins or ends a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) thread: libc::pid_t,
    pub(crate) number: Option<libc::c_long>,
}

/// Starts a process, which the calling thread traces with all its threads.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let ask = || {
        // SAFETY: the call takes no memory; it is the only one between fork and exec.
        done(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
    };
    // SAFETY: `ask` makes one system call and touches no memory of the parent's.
    let child = unsafe { command.pre_exec(ask) }.spawn()?;
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    wait(pid)?;
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    // SAFETY: the options are a number.
    done(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) })?;
    go_on(pid, 0)?;
    Ok(child)
}

/// Calls `seen` for each system call that any thread of the traced process begins (with its number)
/// or ends, until all threads have ended.
pub(crate) fn trace(mut seen: impl FnMut(Event)) -> io::Result<()> {
    loop {
        let (thread, status) = match wait(-1) {
            Ok(waited) => waited,
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let is_call = signal == libc::SIGTRAP | 0x80;
        if is_call && let Ok(number) = entered(thread) {
            seen(Event { thread, number });
        }
        // A new thread begins with a SIGSTOP, which is not delivered.
        let pass_on = if is_call || signal == libc::SIGTRAP || signal == libc::SIGSTOP { 0 } else { signal };
        match go_on(thread, pass_on) {
            // It was killed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
}

/// The system call that a thread has just begun; `None` if it ends one.
fn entered(thread: libc::pid_t) -> io::Result<Option<libc::c_long>> {
    // SAFETY: the structure is plain numbers, for which zeros are values.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes to `info`, which outlives the call.
    done(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) })?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: at an entry the kernel filled this member.
    let number = unsafe { info.u.entry.nr };
    Ok(libc::c_long::try_from(number).ok())
}

fn go_on(thread: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: the signal is a number.
    done(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, signal) })
}

fn wait(thread: libc::pid_t) -> io::Result<(libc::pid_t, libc::c_int)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    done(waited.into()).map(|()| (waited, status))
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
