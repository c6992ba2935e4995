import os
import sys

print("hello from the import")
for _ in range(16):
    os.write(1, b"\x00\xff\x10\x00" * (1 << 16))
    os.write(2, b"\xfe" * (1 << 16))


def tool():
    return "noisy"
