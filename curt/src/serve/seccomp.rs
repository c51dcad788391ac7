//! The seccomp filter of serving threads.
//!
//! A list of allowed system calls, made from what the server does: none of them starts a program,
//! inspects a process, mounts, or opens a connection. So an attacker who controls a serving thread
//! can do little beyond NFS operations. Other calls fail with EPERM or, on request, end the
//! process; the tests run each procedure in the latter mode. Memory cannot be made executable, and
//! no processes can be created, only threads.

use anyhow::{Context, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The action for other system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViolationAction {
    /// The call fails with EPERM.
    Fails,
    /// The process ends with SIGSYS.
    Ends,
}

/// Access to files and directories by handle, descriptor and name.
const FILES: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_umask,
    libc::SYS_flock,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    SYS_CACHESTAT,
];

/// Reading and writing files, and sending files to clients.
const DATA: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
];

/// Accepted connections.
const CONNECTIONS: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
];

/// The credentials of a thread.
const IDENTITY: &[libc::c_long] = &[
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// Memory, locks, time, signals, start and end of threads.
const RUNTIME: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_prlimit64,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls of Linux 6.5 and 6.6 without a name in the libc crate; their numbers are the same on all
/// architectures.
const SYS_CACHESTAT: libc::c_long = 451;
const SYS_FCHMODAT2: libc::c_long = 452;

/// Returns the auxiliary vector, such as the page size (Linux 6.4; without a name in the libc
/// crate).
const PR_GET_AUXV: i32 = 0x4155_5856;

/// Older calls that some libraries use on this architecture.
#[cfg(target_arch = "x86_64")]
const OLD: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_dup2,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[libc::c_long] = &[];

/// Compiled filters.
pub(super) struct SeccompFilters {
    /// clone3 returns ENOSYS, because its flags cannot be checked; glibc then uses clone.
    without_clone3: BpfProgram,
    allowed: BpfProgram,
}

impl SeccompFilters {
    /// Compiles them for this architecture.
    pub(super) fn new(violation_action: ViolationAction) -> Result<Self> {
        let architecture = TargetArch::try_from(std::env::consts::ARCH)
            .context("no seccomp filter for this processor: use --seccomp off")?;
        let build = |rules: Vec<(libc::c_long, Vec<SeccompRule>)>, otherwise, listed| {
            SeccompFilter::new(rules.into_iter().collect(), otherwise, listed, architecture)
                .and_then(BpfProgram::try_from)
                .context("making the filter of system calls")
        };
        let violation_action = match violation_action {
            ViolationAction::Fails => SeccompAction::Errno(errno(libc::EPERM)),
            ViolationAction::Ends => SeccompAction::KillProcess,
        };
        Ok(Self {
            without_clone3: build(
                vec![(libc::SYS_clone3, Vec::new())],
                SeccompAction::Allow,
                SeccompAction::Errno(errno(libc::ENOSYS)),
            )?,
            allowed: build(allowed()?, violation_action, SeccompAction::Allow)?,
        })
    }

    /// Installs them on this thread; threads that it starts inherit them.
    pub(super) fn apply(&self) -> Result<()> {
        for program in [&self.without_clone3, &self.allowed] {
            seccompiler::apply_filter(program)
                .context("this kernel does not support seccomp filters (use --seccomp off)")?;
        }
        Ok(())
    }
}

fn errno(number: i32) -> u32 {
    number.unsigned_abs()
}

/// All allowed calls, with the conditions on their arguments.
fn allowed() -> Result<Vec<(libc::c_long, Vec<SeccompRule>)>> {
    let lists = [FILES, DATA, CONNECTIONS, IDENTITY, RUNTIME, OLD];
    let mut allowed: Vec<_> = lists.concat().into_iter().map(|call| (call, Vec::new())).collect();
    // The first filter handles it; here it must only be allowed.
    allowed.push((libc::SYS_clone3, Vec::new()));
    let (thread, executable) = (mask(libc::CLONE_THREAD), mask(libc::PROT_EXEC));
    allowed.push((libc::SYS_clone, vec![masked(0, thread, thread)?]));
    // A thread may unshare its umask, and nothing else.
    allowed.push((libc::SYS_unshare, vec![masked(0, u64::MAX, mask(libc::CLONE_FS))?]));
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allowed.push((call, vec![masked(2, executable, 0)?]));
    }
    let options = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, PR_GET_AUXV];
    let options = options.map(|option| masked(0, u64::MAX, mask(option)));
    allowed.push((libc::SYS_prctl, options.into_iter().collect::<Result<_>>()?));
    Ok(allowed)
}

fn mask(flag: i32) -> u64 {
    u64::from(flag.unsigned_abs())
}

/// The condition that argument `index` has `value` in the bits of `mask`.
fn masked(index: u8, mask: u64, value: u64) -> Result<SeccompRule> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, operator, value)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .context("making the filter of system calls")
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::thread;

    use super::*;
    use crate::serve::sys;

    /// Filters are per thread, and end with it.
    fn filtered<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        let filters = SeccompFilters::new(ViolationAction::Fails).expect("a filter for this processor");
        thread::scope(|scope| {
            let test = scope.spawn(move || {
                filters.apply().expect("a kernel with filters");
                test()
            });
            test.join().expect("the filtered thread")
        })
    }

    #[test]
    fn programs_processes_connections_and_executable_memory_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        filtered(move || {
            let refused = |what: &str, kind: Option<ErrorKind>| {
                assert_eq!(kind, Some(ErrorKind::PermissionDenied), "{what}");
            };
            refused("connect", TcpStream::connect(address).err().map(|error| error.kind()));
            refused("bind", UdpSocket::bind("127.0.0.1:0").err().map(|error| error.kind()));
            refused("execve", Some(Command::new("/bin/true").exec().kind()));
            refused("fork", Command::new("/bin/true").spawn().err().map(|error| error.kind()));
            for (what, call) in sys::FORBIDDEN {
                assert_eq!(call(), Err(rustix::io::Errno::PERM), "{what}");
            }
        });
    }

    #[test]
    fn threads_inherit_it_and_still_start_work_and_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a client");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        filtered(move || {
            let served = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("accept");
                std::fs::write(&path, "text").expect("write");
                stream.write_all(&std::fs::read(&path).expect("read")).expect("send");
                TcpStream::connect("127.0.0.1:1").err().map(|error| error.kind())
            });
            assert_eq!(
                served.join().expect("a thread of a filtered thread"),
                Some(ErrorKind::PermissionDenied)
            );
        });
        let mut text = String::new();
        client.read_to_string(&mut text).expect("the answer");
        assert_eq!(text, "text");
    }
}
