"""Which system calls a worker may make: a filter of the kernel's, built here instruction by instruction.

It is a list of what is refused. Files are Landlock's affair; here are the calls that reach other processes,
the network, the machine or the kernel's rarer corners, and those that Landlock does not see, as ``chmod``.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Iterator, Sequence

from .kernel import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl, syscall
from .syscalls import AUDIT, NEWEST, machine, number

# fmt: off
OTHERS = ("kcmp", "migrate_pages", "move_pages", "pidfd_getfd", "pidfd_open", "pidfd_send_signal",
          "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace",
          "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sched_setattr", "sched_setparam", "sched_setscheduler",
          "ioprio_set", "setpriority")
"""Reach into other processes."""
SIGNALS = ("kill", "tkill", "tgkill")
"""Send signals; Landlock keeps them in, where it can."""
NETWORK = ("accept", "accept4", "bind", "connect", "listen", "socket")
SHARED = ("memfd_create", "memfd_secret", "mq_open", "msgget", "semget", "shmget")
"""Make what other processes can find, or memory that no limit counts."""
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
ABSENT = ("clone3", "inotify_add_watch", "inotify_init", "inotify_init1", "io_setup", "io_uring_enter",
          "io_uring_register", "io_uring_setup")
"""Are said not to be there; libraries have another way then."""
ATTRIBUTES = ("fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "setxattr")
"""Are said not to be supported, which copies of files take as an answer."""
FOR_ALL = ("sync", "syncfs")
"""Do nothing and say that they have: they write what all programs have not written yet."""
IN_VAIN = ("chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "futimesat", "lchown",
           "utime", "utimensat", "utimes")
"""Do nothing and say that they have: Landlock does not see them, and archives cannot be unpacked without."""
ON_ONESELF = ("prlimit64", "sched_setaffinity")
"""Are allowed for the process that calls, which they know as 0."""
# fmt: on

_LD, _AND, _JEQ, _JSET, _JGE, _JGT, _RET = 0x20, 0x54, 0x15, 0x45, 0x35, 0x25, 0x06
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_ALLOW, _ERROR, _NOTIFY, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
"""All flags of ``clone`` for namespaces."""
_CLONE_THREAD, _AF_UNIX, _SIGKILL = 0x00010000, 1, 9
_KIND, _CONNECTED = 0xF, (1, 5)
"""Which bits of the type of a socket are its kind, and which kinds are connected: streams, and of packets."""
_SIGNAL_OTHERS, _OWNERS = (8, 10, 15), (0x8901, 0x8902, 0x5412)
"""Commands of ``fcntl`` and ``ioctl`` that let the kernel signal other processes, or type for them."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8

Instruction = tuple[int, int, int, int]


def confine(*, programs: bool, signals: bool, attributes: bool, notify: bool) -> int | None:
    """Put the filter over this process for good.

    ``programs`` is whether it may start others, ``signals`` whether it may send them, as Landlock keeps them
    in, and ``attributes`` whether it may change those of files, as none are its user's but its own. With
    ``notify`` every fork asks whoever holds the descriptor that is returned.
    """
    packed = b"".join(struct.pack("<HBBI", *one) for one in _program(programs, signals, attributes, notify))
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("<HxxxxxxQ", len(packed) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    try:
        found = syscall("seccomp", _SET_MODE_FILTER, _NEW_LISTENER if notify else 0, program)
    except OSError as error:
        if notify and error.errno == errno.EINVAL:  # a kernel that cannot ask, like gVisor's
            return confine(programs=programs, signals=signals, attributes=attributes, notify=False)
        raise
    return found if notify else None


def _program(programs: bool, signals: bool, attributes: bool, notify: bool) -> list[Instruction]:
    column = machine()
    if column is None:
        raise OSError("the numbers of the system calls of this machine are not known")
    fork = _NOTIFY if notify else _denied(errno.EPERM)
    return [
        (_LD, 0, 0, _ARCH),
        (_JEQ, 1, 0, AUDIT[column]),
        (_RET, 0, 0, _KILL),
        (_LD, 0, 0, _NR),
        *(_refused_from(_X32, errno.EPERM) if column == 0 else ()),
        (_JGT, 0, 1, NEWEST),
        (_RET, 0, 0, _denied(errno.ENOSYS)),
        *_all(_denied_names(programs, signals), _denied(errno.EPERM)),
        *_all(ABSENT, _denied(errno.ENOSYS)),
        *_all(ATTRIBUTES, _denied(errno.ENOTSUP)),
        *_all(FOR_ALL, _denied(0)),
        *(() if attributes else _all(IN_VAIN, _denied(0))),
        *(() if programs else _all(FORKS, fork)),
        *(_clone_within() if programs else _clone(fork)),
        *_pair(),
        *_unless("fcntl", _ARG1, *_SIGNAL_OTHERS),
        *_unless("ioctl", _ARG1, *_OWNERS),
        *(one for name in ON_ONESELF for one in _only_if(name, _ARG0, 0)),
        *_death_signal(),
        (_RET, 0, 0, _ALLOW),
    ]


def _denied_names(programs: bool, signals: bool) -> tuple[str, ...]:
    denied = (*OTHERS, *NETWORK, *SHARED, *MACHINE, *MOUNTS)
    return (*denied, *(() if programs else PROGRAMS), *(() if signals else SIGNALS))


def _denied(number: int) -> int:
    return _ERROR | number


def _refused_from(first: int, code: int) -> Sequence[Instruction]:
    return (_JGE, 0, 1, first), (_RET, 0, 0, _denied(code))


def _all(names: Iterable[str], verdict: int) -> Iterator[Instruction]:
    """The same verdict over all of these calls."""
    for name in names:
        if (found := number(name)) >= 0:
            yield (_JEQ, 0, 1, found)
            yield (_RET, 0, 0, verdict)


def _where(name: str, judged: Sequence[Instruction]) -> Iterator[Instruction]:
    """What is done with one call, and with no other."""
    yield (_JEQ, 0, len(judged), number(name))
    yield from judged


def _only_if(name: str, argument: int, *values: int) -> Iterator[Instruction]:
    """Allow a call with such an argument alone."""
    allowed = _each(values, _ALLOW)
    return _where(name, [(_LD, 0, 0, argument), *allowed, (_RET, 0, 0, _denied(errno.EPERM))])


def _unless(name: str, argument: int, *values: int) -> Iterator[Instruction]:
    """Allow a call, but with such an argument."""
    refused = _each(values, _denied(errno.EPERM))
    return _where(name, [(_LD, 0, 0, argument), *refused, (_RET, 0, 0, _ALLOW)])


def _each(values: Iterable[int], verdict: int) -> Iterator[Instruction]:
    for value in values:
        yield (_JEQ, 0, 1, value)
        yield (_RET, 0, 0, verdict)


def _pair() -> Iterator[Instruction]:
    """Both ends of a connection may be made; what takes datagrams could send them to sockets with names."""
    refused = (_RET, 0, 0, _denied(errno.EPERM))
    family = [(_LD, 0, 0, _ARG0), (_JEQ, 1, 0, _AF_UNIX), refused]
    kind = [(_LD, 0, 0, _ARG1), (_AND, 0, 0, _KIND), *_each(_CONNECTED, _ALLOW), refused]
    return _where("socketpair", [*family, *kind])


def _clone(fork: int) -> Iterator[Instruction]:
    """A thread may be made; a process is a fork."""
    thread = [(_JSET, 0, 1, _CLONE_THREAD), (_RET, 0, 0, _ALLOW)]
    return _where("clone", [(_LD, 0, 0, _ARG0), *thread, (_RET, 0, 0, fork)])


def _clone_within() -> Iterator[Instruction]:
    """A process may be made, and no namespace for it."""
    namespace = [(_JSET, 0, 1, _NAMESPACES), (_RET, 0, 0, _denied(errno.EPERM))]
    return _where("clone", [(_LD, 0, 0, _ARG0), *namespace, (_RET, 0, 0, _ALLOW)])


def _death_signal() -> Iterator[Instruction]:
    """That it dies with its parent can be said, and not taken back."""
    signal = [(_LD, 0, 0, _ARG1), (_JEQ, 1, 0, _SIGKILL), (_RET, 0, 0, _denied(errno.EPERM))]
    option = [(_LD, 0, 0, _ARG0), (_JEQ, 0, len(signal), PR_SET_PDEATHSIG), *signal]
    return _where("prctl", [*option, (_RET, 0, 0, _ALLOW)])
