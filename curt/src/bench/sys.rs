//! A child that ends with its parent.
//!
//! JUSTIFICATION: a benchmark that is killed must not leave a mount and a server behind, and only the child itself can ask the kernel for that, between fork
//! and exec.
#![allow(unsafe_code, reason = "pre_exec(3) is unsafe by nature")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes the process that `command` starts receive SIGTERM when the thread that starts it ends.
pub(super) fn end_with_parent(command: &mut Command) -> &mut Command {
    let ask = || set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(ask) }
}
