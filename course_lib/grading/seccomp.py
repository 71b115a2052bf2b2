"""A filter for bubblewrap's `--seccomp`: the kernel refuses system calls that no exercise needs.

The filter is a BPF program, written instruction by instruction: load a number, compare it, jump, return a verdict. A
refused call returns an error, as if the kernel did not support it.
"""

from __future__ import annotations

import errno
import os
import platform
import struct

# The number of each call on x86_64 and on aarch64.
REFUSED = {
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},  # keyrings are shared per user
    **{"unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41)},
    **{"mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "ptrace": (101, 117), "process_vm_readv": (310, 270)},
    **{"process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438)},
    **{"perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "syslog": (103, 116)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    # Memory that belongs to no process, so no limit counts it.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186)},
    **{"semget": (64, 190), "mq_open": (240, 180)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    # A low-priority thread waits for a core whenever others work, and our clock does not count this waiting.
    **{"setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119)},
    **{"sched_setattr": (314, 274), "ioprio_set": (251, 30)},
    # Resources shared by the whole machine or by all processes of a user, and writing everybody's files to disk.
    **{"io_setup": (206, 0), "inotify_init": (253, 26), "inotify_init1": (294, 26)},
    **{"sync": (162, 81), "syncfs": (306, 267)},
}
CLONE, CLONE3, SOCKET = (56, 220), (435, 435), (41, 198)
VFORK = 58  # on x86_64; aarch64 has only the flag
# Flags of `clone`: those that create a namespace, and CLONE_VFORK, which makes a parent wait as if for a disk, so that
# our clock does not count the time. Python's subprocess falls back to fork.
NOT_CLONED = 0x7E02_0000 | 0x4000
FAMILIES = (1, 2, 10, 16)  # of sockets: unix, IPv4, IPv6, and netlink, which lists network interfaces
MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}  # column above, and AUDIT_ARCH constant
OTHER_ABI = 0x4000_0000  # x32: x86_64 repeats its calls under numbers from here on

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, KILL = 0x7FFF_0000, 0x8000_0000


def filter_program(machine: str | None = None) -> bytes | None:
    """Return the filter for this machine, or None if we do not know its call numbers."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        return None
    column, name = MACHINES[machine]
    program = [_do(LOAD, MACHINE), _do(EQUAL, name, 1, 0), _do(RETURN, KILL), _do(LOAD, NUMBER)]
    program += [_do(AT_LEAST, OTHER_ABI, 0, 1), _refuse(errno.ENOSYS)] if machine == "x86_64" else []
    for numbers in REFUSED.values():
        program += [_do(EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    program += [_do(EQUAL, VFORK, 0, 1), _refuse(errno.ENOSYS)] if machine == "x86_64" else []
    # clone3 passes its arguments in memory, which a filter cannot read; without it, libc falls back to `clone`.
    program += [_do(EQUAL, CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]
    program += [_do(EQUAL, CLONE[column], 0, 4), _do(LOAD, FIRST_ARGUMENT), _do(ANY_BIT, NOT_CLONED, 0, 1)]
    program += [_refuse(errno.EPERM), _do(RETURN, ALLOW)]
    program += [_do(EQUAL, SOCKET[column], 1, 0), _do(RETURN, ALLOW), _do(LOAD, FIRST_ARGUMENT)]
    for place, family in enumerate(FAMILIES):
        program += [_do(EQUAL, family, len(FAMILIES) - place, 0)]
    return b"".join([*program, _refuse(errno.EAFNOSUPPORT), _do(RETURN, ALLOW)])


def open_filter() -> int | None:
    """Return a file descriptor from which bubblewrap reads the filter, or None if there is no filter."""
    program = filter_program()
    if program is None:
        return None
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(program)
    return reader


def _do(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """Return one instruction. After a comparison, `if_so` or `if_not` instructions are skipped."""
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _refuse(error: int) -> bytes:
    return _do(RETURN, 0x0005_0000 | error)
