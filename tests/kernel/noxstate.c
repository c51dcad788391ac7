/*
 * noxstate PROGRAM [ARG...]: runs PROGRAM so that ptrace refuses it the register set NT_X86_XSTATE.
 *
 * Debian 12's User-Mode Linux keeps its processes' registers in a buffer that is too small where a CPU has wide vector
 * registers, and panics at start. Without that register set it keeps the legacy ones; so programs inside must not use
 * AVX, which ./kernel tells glibc by GLIBC_TUNABLES.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARG(n) ((unsigned)(offsetof(struct seccomp_data, args) + 8 * (n)))
enum { GETREGSET = 0x4204, XSTATE = 0x202 };

int main(int argc, char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARG(0)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GETREGSET, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARG(2)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, XSTATE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

	if (argc < 2) {
		fprintf(stderr, "usage: noxstate PROGRAM [ARG...]\n");
		return 2;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("noxstate: seccomp");
		return 1;
	}
	execvp(argv[1], argv + 1);
	perror("noxstate: exec");
	return 1;
}
