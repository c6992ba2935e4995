"""The thread that writes what is held back."""

import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
# In a process of its own: a signal goes to whichever thread of a process takes it.
BLOCKED = """
import os, signal, time
from toolmesh._worker.calls.output import UNSHIELDED, Outlet

r, w = os.pipe()
outlet = Outlet(w, lambda: 0, UNSHIELDED)
came = []
signal.signal(signal.SIGALRM, lambda *_: came.append(True))
assert outlet.gather(b"held")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
assert os.read(r, 100) == b"held"  # written by the thread, which stays for some looks
os.kill(os.getpid(), signal.SIGALRM)
while outlet._flushing:
    time.sleep(0.001)
assert signal.SIGALRM in signal.sigpending()
assert not came
"""


def test_blocked_signals_do_not_reach_the_thread():
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert ended.returncode == 0, ended.stderr
