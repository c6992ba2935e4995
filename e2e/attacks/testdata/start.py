"""Starts a program as an attacked machine has it: start.py SETTINGS PROGRAM ARG…

With a terminal, descriptors and a key of the kernel that hold the secret, as another
user, in a namespace in which the kernel makes no more of some kinds of namespaces, or as
a root that may make user namespaces alone.
"""

import ctypes
import fcntl
import json
import os
import platform
import sys

settings = json.loads(sys.argv[1])
for kind in settings["refused"]:
    with open(f"/proc/sys/user/max_{kind}_namespaces", "w") as f:
        f.write("0")
os.setsid()
master, slave = os.openpty()
os.close(os.open(os.ttyname(slave), os.O_RDWR))  # the first that a session opens is its own
secret = os.open(settings["secret"], os.O_RDONLY)
for fd in (30, 300):
    os.dup2(secret, fd, inheritable=True)
os.set_inheritable(master, True)
if settings["user"] and os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*3 * (settings["user"],))
    os.setresuid(*3 * (settings["user"],))
if settings["unprivileged"]:
    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # CAP_SYS_ADMIN, which the program does not get
keyctl, add = {"x86_64": (250, 248), "aarch64": (219, 217)}.get(platform.machine(), (0, 0))
if keyctl:
    libc = ctypes.CDLL(None)
    value = os.pread(secret, 100, 0)
    libc.syscall(keyctl, 1, None)
    libc.syscall(add, b"user", b"attacked", value, len(value), -3)
os.execvp(sys.argv[2], sys.argv[2:])
