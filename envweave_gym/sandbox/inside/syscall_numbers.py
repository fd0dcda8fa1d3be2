"""Numbers of system calls by name, on x86-64 and 64-bit ARM; -1 if a machine does not have a call."""

from __future__ import annotations

import platform

MACHINES = {"x86_64": 0, "aarch64": 1, "arm64": 1}
"""Column of each architecture in the table and in ``AUDIT``."""
AUDIT = (0xC000003E, 0xC00000B7)
"""Identifiers of the architectures in seccomp filters (AUDIT_ARCH), by column."""
NEWEST = 462
"""Highest call number that the table was checked against; filters deny newer calls with ENOSYS."""

_TABLE = """
accept 43 202, accept4 288 242, acct 163 89, add_key 248 217, adjtimex 159 171, bind 49 200, bpf 321 280,
capset 126 91, chmod 90 -1, chown 92 -1, chroot 161 51, clock_adjtime 305 266, clock_settime 227 112,
clone 56 220, clone3 435 435, connect 42 203, delete_module 176 106, execve 59 221, execveat 322 281,
fanotify_init 300 262, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, fchown 93 55, fchownat 260 54,
fcntl 72 25, inotify_add_watch 254 27, inotify_init 253 -1, inotify_init1 294 26, io_setup 206 0,
listmount 458 458, statmount 457 457, sync 162 81, syncfs 306 267,
finit_module 313 273, fork 57 -1, fremovexattr 199 16, fsconfig 431 431, fsetxattr 190 7, fsmount 432 432,
fsopen 430 430, fspick 433 433, futimesat 261 -1, init_module 175 105, io_uring_enter 426 426,
io_uring_register 427 427, io_uring_setup 425 425, ioctl 16 29, ioperm 173 -1, iopl 172 -1, ioprio_set 251 30,
kcmp 312 272, kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219, kill 62 129,
landlock_add_rule 445 445, landlock_create_ruleset 444 444, landlock_restrict_self 446 446, lchown 94 -1,
listen 50 201, lookup_dcookie 212 18, lremovexattr 198 15, lsetxattr 189 6, memfd_create 319 279,
memfd_secret 447 447, migrate_pages 256 238, mknod 133 -1, mknodat 259 33, modify_ldt 154 -1, mount 165 40,
mount_setattr 442 442, move_mount 429 429, move_pages 279 239, mq_open 240 180, msgget 68 186,
name_to_handle_at 303 264, nfsservctl 180 42, open_by_handle_at 304 265, open_tree 428 428,
perf_event_open 298 241, personality 135 92, pidfd_getfd 438 438, pidfd_open 434 434,
pidfd_send_signal 424 424, pivot_root 155 41, prctl 157 167, prlimit64 302 261, process_madvise 440 440,
process_mrelease 448 448, process_vm_readv 310 270, process_vm_writev 311 271, ptrace 101 117,
quotactl 179 60, quotactl_fd 443 443, reboot 169 142, removexattr 197 14, request_key 249 218,
rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, sched_setaffinity 203 122, sched_setattr 314 274,
sched_setparam 142 118, sched_setscheduler 144 119, seccomp 317 277, semget 64 190, setdomainname 171 162,
sethostname 170 161, setns 308 268, setpriority 141 140, settimeofday 164 170, setxattr 188 5, shmget 29 194,
socket 41 198, socketpair 53 199, swapoff 168 225, swapon 167 224, syslog 103 116, tgkill 234 131,
tkill 200 130, umount2 166 39, unshare 272 97, userfaultfd 323 282, uselib 134 -1, ustat 136 -1, utime 132 -1,
utimensat 280 88, utimes 235 -1, vfork 58 -1, vhangup 153 58,
mq_getsetattr 245 185, mq_notify 244 184, mq_timedreceive 243 183, mq_timedsend 242 182, mq_unlink 241 181,
msgctl 71 187, msgrcv 70 188, msgsnd 69 189, semctl 66 191, semop 65 193, semtimedop 220 192,
setsockopt 54 208, shmat 30 196, shmctl 31 195, shmdt 67 197, sendfile 40 71, splice 275 76, tee 276 77,
vmsplice 278 75
"""
_NUMBERS = {
    name: (int(x86), int(arm))
    for name, x86, arm in (one.split() for one in _TABLE.replace("\n", " ").split(","))
}


def machine() -> int | None:
    """Return the column of this machine's architecture, or ``None`` if it is not in the table."""
    return MACHINES.get(platform.machine())


def number(name: str) -> int:
    """Return the number of a call on this machine; -1 if the machine does not have it."""
    column = machine()
    return -1 if column is None else _NUMBERS[name][column]
