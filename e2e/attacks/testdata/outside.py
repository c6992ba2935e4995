"""A process of the agent's user that shares memory: outside.py SECRET KEY FILE. Ends, and
takes it along, with its standard input."""

import ctypes
import os
import sys

libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
secret = sys.argv[1].encode()
number = libc.shmget(int(sys.argv[2]), 4096, 0o1600)
at = libc.shmat(number, None, 0)
ctypes.memmove(at, secret, len(secret))
with open(os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
    f.write(secret)
try:
    print("ready", number, flush=True)
    sys.stdin.read()
finally:
    libc.shmctl(number, 0, None)
    os.remove(sys.argv[3])
