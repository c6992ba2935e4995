"""Tools that change what they share with the tools after them."""

import asyncio
import builtins
import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings


class Broken:
    def write(self, _text):
        raise RuntimeError("this stream is broken")

    flush = write


def ring(*_):
    raise TimeoutError("of a call that is over")


def streams():
    sys.stdout = sys.stderr = Broken()


def no_streams():
    del sys.stdout, sys.stderr, sys.__stdout__, sys.stdin


def method_of_a_stream():
    sys.stdout.write = sys.stderr.write = Broken().write


def json_functions():
    json.loads = json.dumps = lambda *_: "false"


def json_gone():
    del json.loads, json.dumps


def json_classes():
    json.JSONEncoder.encode = json.JSONDecoder.decode = None


def json_module():
    sys.modules["json"] = sys


def paths():
    sys.path[:] = []
    sys.modules.clear()


def path_replaced():
    sys.path = ["/nowhere"]


def finders():
    sys.meta_path.clear()
    sys.path_hooks = []


def modules_replaced():
    sys.modules = {}


def builtin_functions():
    builtins.print = builtins.open = builtins.__import__ = None


def timer():
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def timer_with_a_handler():
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)


def alarm_that_waits():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.05)


def mask():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def handlers():
    for one in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPROF, signal.SIGURG):
        signal.signal(one, signal.SIG_IGN)


def folder():
    os.chdir("/")
    os.umask(0o777)


def strict_warnings():
    warnings.simplefilter("error")


def no_warnings():
    warnings.filters = None


def hooks():
    threading.excepthook = sys.excepthook = sys.unraisablehook = None


def environment():
    os.environ.clear()


def variables():
    os.environ["GIVEN"] = "no"
    os.environb[b"PATH"] = b""


def a_variable_of_a_mapping():
    os.environ |= {"GIVEN": "no"}
    del os.environ["PATH"]


def environment_replaced():
    os.environ = {}


def recursion():
    sys.setrecursionlimit(60)


def open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def descriptors_closed():
    for fd in (0, 1, 2):
        os.close(fd)


def descriptors_closed_by_files():
    for fd in (0, 1, 2):
        os.fdopen(fd, "rb" if fd == 0 else "wb").close()


def descriptors_swapped():
    os.dup2(2, 1)
    os.dup2(os.open(__file__, os.O_RDONLY), 0)


held_open = []


def descriptors_taken():
    """The files stay open: their numbers are the next tool's 0, 1 and 2."""
    descriptors_closed()
    held_open.extend(tempfile.TemporaryFile(buffering=0) for _ in range(3))


def all_at_once():
    for change in (handlers, mask, hooks, folder, strict_warnings, environment, streams, timer_with_a_handler, json_gone,
                   builtin_functions, paths):
        change()


def beyond_repair():
    """The agent takes away the right to raise it again, or a user never had it."""
    ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # CAP_SYS_RESOURCE out of the bounding set, for good measure
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def additions():
    """What libraries do on first use."""
    sys.path.append("/added")
    sys.path.insert(0, "/ahead")
    os.environ["ADDED"] = "1"
    os.environ["PATH"] = "/more:" + os.environ["PATH"]
    sys.modules["added"] = sys
    warnings.filterwarnings("ignore", "something of a library's")


def has_additions():
    return [
        "/added" in sys.path, sys.path[0] == "/ahead", os.environ.get("ADDED"), os.environ["PATH"].startswith("/more:"),
        sys.modules.get("added") is sys, warnings.filters[0][0],
    ]


def change(what: str):
    globals()[what]()
    return os.getpid()


async def achange(what: str):
    return change(what)


def wrong(where: str, late: str, wait: float = 0):
    """What is not as it is to be, seen by another tool; and the process."""
    found = []

    def check(name, right):
        try:
            if right() is False:
                found.append(name)
        except BaseException as failure:
            found.append(f"{name}: {type(failure).__name__}: {failure}")

    check("stdout", lambda: print("printed"))
    check("stderr", lambda: print("printed too", file=sys.stderr))
    check("input", lambda: sys.stdin is not None)
    check("json", lambda: json.loads(json.dumps({"a": [1]})) == {"a": [1]})
    check("its module", lambda: importlib.import_module("json") is json)
    check("a late import", lambda: importlib.import_module(late) is not None)
    check("a module of the index", lambda: importlib.import_module("late").VALUE == 1)
    check("builtins", lambda: open(os.devnull).close())
    check("folder", lambda: os.path.samefile(os.getcwd(), where))
    check("warnings", lambda: warnings.warn("nothing", stacklevel=1))
    check("hooks", lambda: None not in (threading.excepthook, sys.excepthook, sys.unraisablehook))
    check("environ", lambda: os.environ["PATH"] != "" and os.getenv("GIVEN") == "yes")
    check("handlers", lambda: [signal.getsignal(one) for one in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGPROF)]
          == [signal.SIG_DFL] * 4)
    check("SIGCHLD", lambda: signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)
    check("SIGINT", lambda: signal.getsignal(signal.SIGINT) == signal.default_int_handler)
    check("mask", lambda: not signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    check("recursion", lambda: sys.getrecursionlimit() >= 1000)
    check("files", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100)
    check("path", lambda: any(os.path.samefile(one, where) for one in sys.path if os.path.isdir(one)))
    check("waiting", lambda: time.sleep(wait))
    return [os.getpid(), found]


def raw() -> list[int | str]:
    """Writes past Python to what is to be standard output and error."""
    os.write(1, b"to 1\n")
    os.write(2, b"to 2\n")
    subprocess.run(["/bin/sh", "-c", "echo a child"], check=True)
    return [os.getpid(), os.read(0, 10).decode()]


async def araw() -> list[int | str]:
    return raw()


async def awrong(where: str, late: str, wait: float = 0):
    found = wrong(where, late)
    try:
        await asyncio.sleep(wait)
    except BaseException as failure:
        found.append(repr(failure))
    return found


def spins():
    while True:
        pass


async def aspins():
    while True:
        await asyncio.sleep(0)
