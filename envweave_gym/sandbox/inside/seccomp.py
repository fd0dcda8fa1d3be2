"""The seccomp filter of a worker: a BPF program that allows or denies system calls by number and arguments.

The filter lists the denied calls and allows all others. Landlock protects files; this filter protects other processes,
the network and the machine, and denies calls that Landlock does not check, such as ``chmod``.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Tuple

from .kernel import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl, syscall
from .syscall_numbers import AUDIT, NEWEST, machine, number

# fmt: off
MEMORY_OF_OTHERS = ("kcmp", "migrate_pages", "move_pages", "pidfd_getfd", "process_madvise",
                    "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace")
"""Denied at every level: calls that read or change memory and descriptors of other processes."""
OTHERS = ("pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sched_setattr",
          "sched_setparam", "sched_setscheduler", "ioprio_set", "setpriority")
"""Denied at every level: calls that signal other processes or change their scheduling."""
SIGNALS = ("kill", "tkill", "tgkill")
"""Denied if the kernel's Landlock cannot confine signals: calls that send signals."""
NETWORK = ("accept", "accept4", "bind", "connect", "listen", "socket")
SHARED = ("memfd_create", "memfd_secret", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive",
          "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop",
          "semtimedop", "shmat", "shmctl", "shmdt", "shmget")
"""Denied: all calls of System V IPC and POSIX message queues, and ``memfd_*``.

Denying only ``shmget`` and the like would not be enough, because a guessed identifier can be used without them. No
limit counts the memory of ``memfd_*``."""
MACHINE = ("acct", "adjtimex", "bpf", "capset", "chroot", "clock_adjtime", "clock_settime", "delete_module",
           "fanotify_init", "finit_module", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load",
           "add_key", "keyctl", "request_key", "lookup_dcookie", "modify_ldt", "nfsservctl",
           "perf_event_open", "personality", "quotactl", "quotactl_fd", "reboot", "sethostname",
           "setdomainname", "settimeofday", "swapoff", "swapon", "syslog", "uselib", "userfaultfd", "ustat",
           "vhangup")
MOUNTS = ("fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount",
          "name_to_handle_at", "open_by_handle_at", "open_tree", "pivot_root", "setns", "umount2", "unshare",
          "listmount", "mknod", "mknodat", "statmount")
PROGRAMS = ("execve", "execveat")
FORKS = ("fork", "vfork")
# A filter cannot read the flags of clone3, which are in memory; without it, libraries use clone.
ABSENT = ("clone3", "inotify_add_watch", "inotify_init", "inotify_init1", "io_setup", "io_uring_enter",
          "io_uring_register", "io_uring_setup", "landlock_add_rule", "landlock_create_ruleset")
"""Denied with ENOSYS, after which libraries use another call.

Landlock rulesets are among them because they take kernel memory without a limit."""
LENT_PAGES = ("sendfile", "splice", "tee", "vmsplice")
"""Denied with ENOSYS, after which ``shutil``, ``socket`` and ``asyncio`` copy the bytes instead.

These calls make a pipe or socket refer to memory pages. Even one byte holds its whole page (2 MiB if huge), and no
limit counts that."""
ATTRIBUTES = ("fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "setxattr")
"""Denied with ENOTSUP, an error that programs that copy files ignore."""
FLUSHES = ("sync", "syncfs")
"""Skipped with success: these calls would flush the data of all programs of the machine to disk."""
IGNORED = ("chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "futimesat", "lchown",
           "utime", "utimensat", "utimes")
"""Skipped with success, unless the worker has its own UID: calls that change attributes of files.

Landlock does not check them. If they failed, no archive could be unpacked."""
ON_ONESELF = ("prlimit64", "sched_setaffinity")
"""Allowed only with PID 0, which means the calling process."""
# fmt: on

# from linux/bpf_common.h and linux/seccomp.h: instructions, offsets in struct seccomp_data, and verdicts
_LD, _AND, _JEQ, _JSET, _JGE, _JGT, _RET = 0x20, 0x54, 0x15, 0x45, 0x35, 0x25, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_ALLOW, _ERROR, _NOTIFY, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_X32 = 0x40000000
"""Bit of system call numbers of the x32 ABI, which x86-64 kernels accept as well."""
_NAMESPACES = 0x7E020000
"""Mask of all ``clone`` flags that create namespaces."""
_CLONE_THREAD, _AF_UNIX, _SIGKILL = 0x00010000, 1, 9
_KIND, _CONNECTED = 0xF, (1, 5)
"""Mask of a socket type's kind, and the kinds with connections: SOCK_STREAM and SOCK_SEQPACKET."""
_SIGNAL_OTHERS, _SET_PIPE_SIZE = (8, 10, 15), 1031
"""Commands of ``fcntl`` that let the kernel signal other processes, and the one that enlarges a pipe."""
_TYPE_FOR_OTHERS = 0x5412
"""Request of ``ioctl`` that inserts input into a terminal (TIOCSTI)."""
_REQUEST_KIND, _ON_SOCKETS = 0xFF00, (0x8900, 0x8B00)
"""Mask of an ``ioctl`` request's kind, and the two kinds of requests on sockets.

They list interfaces and addresses, set owners that get signals, and query wireless devices."""
_SOCKET_OPTIONS = (7, 8, 32, 33, 25, 26, 50, 62)
"""Options of ``setsockopt`` that enlarge a socket's buffers, bind it to an interface, or attach a filter.

Without a cgroup no limit counts the buffers: 256 socket pairs would hold 2 GB. The name of an interface could be read
from a socket that is bound to it."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8

Instruction = Tuple[int, int, int, int]


def confine(*, programs: bool, signals: bool, attributes: bool, notify: bool) -> int | None:
    """Apply the filter to this process, permanently.

    ``programs`` allows starting programs. ``signals`` allows sending signals, if Landlock confines them. ``attributes``
    allows changing attributes of files, for a worker with its own UID. With ``notify`` the kernel suspends each fork
    until the holder of the returned descriptor allows or denies it; ``None`` is returned if forks are just denied.
    """
    program = _program(programs, signals, attributes, notify)
    try:
        found = _load(program, _NEW_LISTENER if notify else 0)
    except OSError as error:
        if notify and error.errno == errno.EINVAL:  # a kernel without user notifications, like gVisor's
            return confine(programs=programs, signals=signals, attributes=attributes, notify=False)
        raise
    return found if notify else None


def keep_off_others() -> None:
    """Permanently deny the calls that read, write, limit or reschedule other processes, and allow all others."""
    denied = _all((*MEMORY_OF_OTHERS, *OTHERS), _denied(errno.EPERM))
    _load([*_of_this_machine(), *denied, *_on_oneself(), (_RET, 0, 0, _ALLOW)], 0)


def _on_oneself() -> Iterator[Instruction]:
    """Yield the instructions that allow the calls in ``ON_ONESELF`` only with PID 0, the caller."""
    for name in ON_ONESELF:
        yield from _only_if(name, _ARG0, 0)


def _load(instructions: Iterable[Instruction], flags: int) -> int:
    packed = b"".join(struct.pack("<HBBI", *one) for one in instructions)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("<HxxxxxxQ", len(packed) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    return syscall("seccomp", _SET_MODE_FILTER, flags, program)


def _of_this_machine() -> list[Instruction]:
    """Return the first instructions: kill callers with another architecture's numbers, then load the call's number."""
    column = machine()
    if column is None:
        raise OSError("the numbers of the system calls of this machine are not known")
    return [
        (_LD, 0, 0, _ARCH),
        (_JEQ, 1, 0, AUDIT[column]),
        (_RET, 0, 0, _KILL),
        (_LD, 0, 0, _NR),
        *(_refused_from(_X32, errno.EPERM) if column == 0 else ()),
    ]


def _program(programs: bool, signals: bool, attributes: bool, notify: bool) -> list[Instruction]:
    fork = _NOTIFY if notify else _denied(errno.EPERM)
    return [
        *_of_this_machine(),
        # first of all: a call newer than the table might do the same as a denied one
        (_JGT, 0, 1, NEWEST),
        (_RET, 0, 0, _denied(errno.ENOSYS)),
        *_all(_denied_names(programs, signals), _denied(errno.EPERM)),
        *_all((*ABSENT, *LENT_PAGES), _denied(errno.ENOSYS)),
        *_all(ATTRIBUTES, _denied(errno.ENOTSUP)),
        *_all(FLUSHES, _denied(0)),  # the error 0 is success
        *(() if attributes else _all(IGNORED, _denied(0))),
        *(() if programs else _all(FORKS, fork)),
        *(_clone_within() if programs else _clone(fork)),
        *_pair(),
        *_unless("fcntl", _ARG1, *_SIGNAL_OTHERS, _SET_PIPE_SIZE),
        *_unless("setsockopt", _ARG2, *_SOCKET_OPTIONS),
        *_ioctl(),
        *_on_oneself(),
        *_death_signal(),
        (_RET, 0, 0, _ALLOW),
    ]


def _denied_names(programs: bool, signals: bool) -> tuple[str, ...]:
    denied = (*MEMORY_OF_OTHERS, *OTHERS, *NETWORK, *SHARED, *MACHINE, *MOUNTS)
    return (*denied, *(() if programs else PROGRAMS), *(() if signals else SIGNALS))


def _denied(number: int) -> int:
    return _ERROR | number


def _refused_from(first: int, code: int) -> Sequence[Instruction]:
    return (_JGE, 0, 1, first), (_RET, 0, 0, _denied(code))


def _all(names: Iterable[str], verdict: int) -> Iterator[Instruction]:
    """Yield the instructions that return ``verdict`` for the system calls ``names``, such as to deny them."""
    for name in names:
        found = number(name)
        if found >= 0:
            yield (_JEQ, 0, 1, found)
            yield (_RET, 0, 0, verdict)


def _where(name: str, judged: Sequence[Instruction]) -> Iterator[Instruction]:
    """Yield instructions that run ``judged`` for the system call ``name``, and jump over it for all others.

    ``judged`` has at most 255 instructions, as the jump over them has 8 bits.
    """
    yield (_JEQ, 0, len(judged), number(name))
    yield from judged


def _only_if(name: str, argument: int, *values: int) -> Iterator[Instruction]:
    """Yield the instructions that allow a call only with one of these values of an argument."""
    allowed = _each(values, _ALLOW)
    return _where(name, [(_LD, 0, 0, argument), *allowed, (_RET, 0, 0, _denied(errno.EPERM))])


def _unless(name: str, argument: int, *values: int) -> Iterator[Instruction]:
    """Yield the instructions that allow a call except with these values of an argument."""
    refused = _each(values, _denied(errno.EPERM))
    return _where(name, [(_LD, 0, 0, argument), *refused, (_RET, 0, 0, _ALLOW)])


def _each(values: Iterable[int], verdict: int) -> Iterator[Instruction]:
    for value in values:
        yield (_JEQ, 0, 1, value)
        yield (_RET, 0, 0, verdict)


def _pair() -> Iterator[Instruction]:
    """Yield the instructions that allow ``socketpair`` only for Unix sockets with connections.

    Datagram sockets could send to named sockets of other processes.
    """
    refused = (_RET, 0, 0, _denied(errno.EPERM))
    family = [(_LD, 0, 0, _ARG0), (_JEQ, 1, 0, _AF_UNIX), refused]
    kind = [(_LD, 0, 0, _ARG1), (_AND, 0, 0, _KIND), *_each(_CONNECTED, _ALLOW), refused]
    return _where("socketpair", [*family, *kind])


def _ioctl() -> Iterator[Instruction]:
    """Yield the instructions that deny ``ioctl`` requests on sockets and input into terminals, and allow others."""
    refused = _denied(errno.EPERM)
    kinds = [(_LD, 0, 0, _ARG1), (_AND, 0, 0, _REQUEST_KIND), *_each(_ON_SOCKETS, refused)]
    one = [(_LD, 0, 0, _ARG1), *_each((_TYPE_FOR_OTHERS,), refused)]
    return _where("ioctl", [*kinds, *one, (_RET, 0, 0, _ALLOW)])


def _clone(fork: int) -> Iterator[Instruction]:
    """Yield the instructions that allow ``clone`` for threads, and give new processes the verdict ``fork``."""
    thread = [(_JSET, 0, 1, _CLONE_THREAD), (_RET, 0, 0, _ALLOW)]
    return _where("clone", [(_LD, 0, 0, _ARG0), *thread, (_RET, 0, 0, fork)])


def _clone_within() -> Iterator[Instruction]:
    """Yield the instructions that deny ``clone`` with new namespaces and allow it otherwise."""
    namespace = [(_JSET, 0, 1, _NAMESPACES), (_RET, 0, 0, _denied(errno.EPERM))]
    return _where("clone", [(_LD, 0, 0, _ARG0), *namespace, (_RET, 0, 0, _ALLOW)])


def _death_signal() -> Iterator[Instruction]:
    """Yield the instructions that allow ``prctl`` to set the parent-death signal only to SIGKILL."""
    signal = [(_LD, 0, 0, _ARG1), (_JEQ, 1, 0, _SIGKILL), (_RET, 0, 0, _denied(errno.EPERM))]
    option = [(_LD, 0, 0, _ARG0), (_JEQ, 0, len(signal), PR_SET_PDEATHSIG), *signal]
    return _where("prctl", [*option, (_RET, 0, 0, _ALLOW)])
