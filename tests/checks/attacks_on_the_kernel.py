"""Attacks on the machine itself: on its memory, its namespaces, its keyrings, its time."""

from __future__ import annotations

import textwrap

# A call of the kernel by its number, on x86_64 or on aarch64; less than 0 if it is refused.
CALL = """
import ctypes, mmap, platform, resource
libc = ctypes.CDLL(None, use_errno=True)
def kernel(x86_64, aarch64, *arguments):
    return libc.syscall(x86_64 if platform.machine() == "x86_64" else aarch64, *arguments)
"""

KERNEL_ATTACKS = {
    "memory of nobody": """
        if hasattr(os, "memfd_create"):
            try:
                os.memfd_create("hoard")
                won()
            except OSError:
                pass
        if libc.shmget(0, 1 << 20, 0o1600) >= 0 or libc.msgget(0, 0o1600) >= 0 or libc.semget(0, 10, 0o1600) >= 0:
            won()
    """,
    "nested namespace": """
        for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x10020000):  # user, mount, network, processes
            if libc.unshare(flag) == 0:
                won()
            child = kernel(56, 220, flag | signal.SIGCHLD, 0, 0, 0, 0)
            if child == 0:
                os._exit(0)
            if child > 0:
                won()
    """,
    "mount of its own": """
        for words in (["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/tmp"], ["mount", "-t", "tmpfs", "x", "/tmp"]):
            try:
                if subprocess.run(words, capture_output=True).returncode == 0:
                    won()
            except OSError:
                pass
        if libc.mount(b"x", b"/tmp", b"tmpfs", 0, None) == 0 or kernel(430, 430, b"tmpfs", 0) >= 0:
            won()
    """,
    "every writable folder filled": """
        written = 0
        for folder, _, _ in os.walk("/"):
            if folder.startswith(("/proc", "/sys", "/usr")) or not os.access(folder, os.W_OK):
                continue
            for number in range(10):
                try:
                    with open(f"{folder}/fill{number}", "wb") as file:
                        while True:
                            written += file.write(bytes(1 << 20))
                except OSError:
                    pass
        if written > 200 << 20:
            won()
    """,
    "keyring": """
        if kernel(248, 217, b"user", b"answers", b"02", 2, -4) >= 0 or kernel(250, 219, 0, -3, 0) >= 0:
            won()
        if kernel(249, 218, b"user", b"answers", None, -4) >= 0:
            won()
    """,
    "another's memory": """
        attach, me = 16, os.getpid()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != me:
                if libc.ptrace(attach, int(name), 0, 0) == 0:
                    won()
        if kernel(438, 438, 3, 0, 0) >= 0 or kernel(310, 270, os.getppid(), 0, 0, 0, 0, 0) >= 0:
            won()
    """,
    "odd calls": """
        room = ctypes.create_string_buffer(256)
        for numbers in ((425, 425), (321, 280), (298, 241), (323, 282), (103, 116), (303, 264), (300, 262)):
            if kernel(*numbers, 1, room, 1, 0, 0) >= 0:
                won()
        if ctypes.get_errno() == 38:
            won()
    """,
    "what all share": """
        context = ctypes.c_ulong(0)
        if kernel(206, 0, 65536, ctypes.byref(context)) >= 0:  # the machine has so many in all
            won()
        if kernel(294, 26, 0) >= 0 or kernel(162, 81) >= 0 or kernel(251, 30, 1, 0, 3 << 13) >= 0:
            won()
    """,
    "a wait that does not count": """
        nothing = ctypes.create_string_buffer(64)
        if kernel(144, 119, 0, 5, nothing) >= 0 or kernel(314, 274, 0, nothing, 0) >= 0:
            won()
        if kernel(141, 140, 0, 0, 19) >= 0:
            won()
    """,
    "odd sockets": """
        for family in (17, 38, 40, 31, 29, 44):  # packets, ciphers, the machine's host, bluetooth, cars, fast packets
            try:
                socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_DGRAM)
                won()
            except OSError:
                pass
    """,
    "more than its limits": """
        for name in ("RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE"):
            try:
                resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                won()
            except (OSError, ValueError):
                pass
        if os.path.exists("/sys/fs/cgroup/memory") or os.path.exists("/sys/fs/cgroup/cgroup.procs"):
            won()
    """,
    "devices": """
        for kind in (0o020666, 0o060666):
            try:
                os.mknod("/tmp/device", kind, os.makedev(1, 1))
                won()
            except OSError:
                pass
        for name in ("/dev/kmsg", "/dev/mem", "/dev/fuse", "/dev/kvm", "/dev/loop0"):
            if os.path.exists(name):
                won()
    """,
    "no pipes": "os.closerange(0, 4096)",
    "everybody stopped": "os.kill(-1, signal.SIGSTOP)",
}
KERNEL_ATTACKS = {name: CALL + "\n" + textwrap.dedent(text) for name, text in KERNEL_ATTACKS.items()}
# Those that nothing but their time ends, and the seconds they are given.
ENDLESS_ON_THE_KERNEL = {"everybody stopped": 3}

# What fills memory without a process that has it in its account; each is more than a gigabyte.
HOARDS = {
    "anonymous": "hoard = [bytearray(b'x' * (100 << 20)) for _ in range(15)]",
    "of children": "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n"
    "        hoard = bytearray(b'x' * (300 << 20))\n        time.sleep(1000)\ntime.sleep(1000)",
    "shared": "import mmap\nroom = mmap.mmap(-1, 1500 << 20)\nfor _ in range(1500):\n    room.write(b'x' * (1 << 20))\n"
    "import time\ntime.sleep(1000)",
    "in sockets": "import os, socket, time\nfor _ in range(10):\n    if os.fork() == 0:\n        break\n"
    "pairs = []\ntry:\n    while True:\n        pairs.append(socket.socketpair())\n"
    "        pairs[-1][0].setblocking(False)\n        try:\n            while True:\n"
    "                pairs[-1][0].send(bytes(1 << 14))\n        except BlockingIOError:\n            pass\n"
    "except OSError:\n    pass\ntime.sleep(1000)",
    "in TCP": """
import socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=4000)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
kept = []
while len(kept) < 4000:
    one = socket.create_connection(server.getsockname())
    other, _ = server.accept()
    one.setblocking(False)
    kept += [one, other]
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        pass
time.sleep(1000)
""",
}
