"""Tools that do what no tool should. Every bomb is bounded by itself."""

import asyncio
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ME = os.path.basename(__file__)


def ok(n: int = 1):
    print("still here")
    json.dumps({"n": n})
    return n


def where():
    return os.getpid()


# Time.


def begun():
    print("begun", flush=True)


def loop():
    begun()
    while True:
        pass


def holds_the_lock():
    """In C, with the interpreter's lock, and no signal ends it."""
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(256)
    begun()
    while True:
        try:
            libc.pthread_mutex_lock(mutex)
        except BaseException:  # a signal came in between
            pass


async def aholds_the_lock():
    holds_the_lock()


def catches_everything():
    said = False
    while True:
        try:
            if not said:
                said = True
                begun()
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def catches_and_returns():
    try:
        begun()
        time.sleep(1000)
    except BaseException:
        return "nothing happened"


def sleeps():
    begun()
    time.sleep(1000)


def computes_in_a_child():
    code = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-I", "-c", code])


async def acomputes():
    while True:
        await asyncio.sleep(0)


# Memory. Pages are written to, so that they are really taken.


def takes(mb: int):
    return len("x" * (mb << 20))


def fills():
    with tempfile.NamedTemporaryFile(delete=False) as f:
        f.write(b"x" * (4 << 20))
    time.sleep(20)


def hoards():
    held = []
    for _ in range(600):
        held.append(b"x" * (1 << 20))
        time.sleep(0.0005)
    return len(held)


def hoards_and_catches():
    held = []
    try:
        while len(held) < 10:
            held.append(b"x" * (1 << 30))
    except MemoryError:
        held.clear()
        return "fine"


def reserves():
    return len(bytearray(1 << 36))


def hoards_in_a_child():
    # Its own limit of data may stop it before the watchdog has seen it: then it stays as it is.
    code = "import time\nheld = []\ntry:\n while len(held) < 400: held.append(b'x' * (1 << 20))\nexcept MemoryError: pass\ntime.sleep(30)"
    subprocess.run([sys.executable, "-I", "-c", code])


async def ahoards():
    held = []
    for _ in range(600):
        held.append(b"x" * (1 << 20))
        await asyncio.sleep(0.0005)
    return len(held)


# Processes, threads, files.


def fork_bomb():
    for _ in range(7):  # at most 128 processes, for at most 20 s
        os.fork()
    time.sleep(20)


def thread_flood():
    threads = [threading.Thread(target=time.sleep, args=(20,), daemon=True) for _ in range(300)]
    for one in threads:
        one.start()
    time.sleep(20)


def opens():
    return len([open(os.devnull) for _ in range(5000)])


def closes():
    os.closerange(0, 65536)
    return "closed"


# Output.


def prints(mb: int):
    piece = "x" * 1023 + "\n"
    for _ in range(mb):
        sys.stdout.write(piece * 1024)
    return mb


def writes(fd: int, mb: int):
    piece = b"\x00\xff" * (1 << 19)
    for _ in range(mb):
        left = memoryview(piece)
        while left:
            left = left[os.write(fd, left):]
    return mb


# Ends.


def exits():
    sys.exit(3)


def os_exits():
    os._exit(3)


def segfaults():
    ctypes.string_at(0)


def aborts():
    os.abort()


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def kills_all():
    os.kill(-1, signal.SIGKILL)


def kills_the_zygote():
    os.kill(os.getppid(), signal.SIGKILL)


def stops_its_group():
    begun()
    while True:
        try:
            os.killpg(0, signal.SIGSTOP)
            return "went on"
        except BaseException:  # it was cancelled before it got that far
            pass


def leaves_a_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(3):
                os.close(fd)
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)
    os.wait()
    return "left"


def leaves_a_child():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return "left"


async def aleaves_a_child():
    await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    return "left"


def dies_with_a_daemon():
    leaves_a_child()
    os._exit(4)


def comes_back_twice():
    os.fork()
    return "back"


# Sabotage of the worker.


def sabotages():
    sys.stdout = sys.stderr = sys.__stdout__ = None
    sys.path.clear()
    for number in (signal.SIGURG, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    json.dumps = json.loads = None
    json.JSONEncoder.encode = json.JSONDecoder.decode = None
    os.chdir("/")
    return "done"


def raises():
    raise ValueError("as it should be")


def forges():
    for fd in range(3, 1024):
        try:
            os.write(fd, struct.pack("<IBBHQ", 0xFFFFFFF0, 17, 0, 0, 1) + b"lies")
        except OSError:
            pass
    return "forged"


class Liar(list):
    def __len__(self):
        return 1 << 40

    def __iter__(self):
        return iter([1, 2])


class Text(str):
    def __len__(self):
        return 3


class Table(dict):
    def __len__(self):
        return 0

    def items(self):
        return [("a", 1), ("a", 2)]


def lies(what: str):
    return {"list": Liar([1, 2, 3]), "text": Text("abcdef"), "table": Table(b=1)}[what]


class Endless(list):
    def __iter__(self):
        while True:
            yield 1


class EndlessTable(dict):
    def items(self):
        while True:
            yield "a", 1


def never_ends(what: str):
    return {"a": {"list": Endless([1]), "table": EndlessTable(a=1)}[what]}


def big(size: int):
    return "x" * size


# Streams.


def endless():
    n = 0
    while True:
        yield n
        n += 1


def breaks():
    yield 1
    yield 2
    raise ValueError("after two")


async def aendless():
    n = 0
    while True:
        yield n
        n += 1


async def abreaks():
    yield 1
    yield 2
    raise ValueError("after two")


def ignores_close():
    n = 0
    while True:
        try:
            yield n
        except BaseException:
            pass
        n += 1


async def blocks():
    begun()
    time.sleep(1000)


async def aok():
    await asyncio.sleep(0)
    return "async"
