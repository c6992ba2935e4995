"""What is put back between two calls of one worker."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys

from toolmesh._worker.calls import output
from toolmesh._worker.state import snapshot

output.install(output.Outlet(-1, int, output.UNSHIELDED))
snapshot.watch()
taken = snapshot.Snapshot()
taken.hold()
taken.begin()
{change}
fit = taken.mend()
os.write(1, b"%d 1" % fit)
os.write(2, b"2")
os.write(1, os.read(0, 10))
"""


def after(change: str) -> tuple[str, str]:
    """What a process writes to 1 and 2, and reads from 0, when change is put back."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(change=change)],
        input="0", capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=15,
    )
    return done.stdout, done.stderr


def test_closed_descriptors_are_put_back():
    assert after("for fd in (0, 1, 2): os.close(fd)") == ("1 10", "2")


def test_descriptors_that_files_have_closed_are_put_back():
    assert after("for fd in (0, 1, 2): open(fd, 'rb' if fd == 0 else 'wb').close()") == ("1 10", "2")


def test_descriptors_that_stand_for_other_files_are_put_back():
    assert after("os.dup2(2, 1), os.dup2(os.open(os.devnull, os.O_RDWR), 0), os.dup2(0, 2)") == ("1 10", "2")


def test_a_worker_without_its_copies_takes_no_further_call():
    program = "os.closerange(snapshot.HIGH, snapshot.HIGH + 9); os.close(2); assert not taken.mend(); os._exit(0)"
    assert after(program) == ("", "")


def test_descriptors_closed_before_the_first_call_stay_closed():
    change = "os.close(0); taken = snapshot.Snapshot(); taken.hold(); taken.begin(); os.write(1, b'%d' % taken.mend())"
    out, err = after(change)
    assert out == "11 1"
    assert "Bad file descriptor" in err


def test_equal_copies_are_put_back():
    """What is equal is not the same: others hold the list, the variables and the functions that were there."""
    for change in ("sys.path = list(sys.path)", "os.environ = dict(os.environ)", "sys.modules = dict(sys.modules)",
                   "import builtins; builtins.print = lambda *_: None", "import json; json.loads = lambda *_: None",
                   "import warnings; warnings.filters = list(warnings.filters)", "sys.stdin = open(os.devnull)",
                   "import json; json.JSONEncoder.default = None", "import threading; threading.excepthook = print"):
        holder, _, name = change.rpartition("; ")[2].partition(" =")[0].rpartition(".")
        program = f"""
import builtins, json, threading, warnings
before, was = {holder}.{name}, taken._same()
{change}
changed = not taken._same()
os._exit(0 if was and changed and taken.mend() and {holder}.{name} is before else 9)
"""
        done = subprocess.run([sys.executable, "-c", PROGRAM.format(change=program)], stdin=subprocess.DEVNULL,
                              capture_output=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=15, check=False)
        assert done.returncode == 0, (change, done.stderr.decode())
