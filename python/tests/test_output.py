"""What a tool prints and logs, and the thread that writes what is held back."""

import os
import pathlib
import re
import subprocess
import sys
import threading

from toolmesh._worker.calls import plain, threads
from toolmesh._worker.calls.output import UNSHIELDED, Outlet
from toolmesh._worker.wire.frames import LOG, LOG_RECORD, LOG_STDERR, LOG_STDOUT, Reader

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

# A child of a tool has closed the worker's descriptors, and a file of its own has the number of one.
OF_A_CHILD = """
import os
from toolmesh._worker.calls.output import UNSHIELDED, Outlet
from toolmesh._worker.calls.terminals import forked_by_tool
from toolmesh._worker.wire.frames import Reader

calls, w = os.pipe()
forked_by_tool(Outlet(w, lambda: 0, UNSHIELDED), Reader(calls))
child = os.fork()
if not child:
    assert os.open(os.devnull, os.O_RDONLY) == calls
    below = os.fork()
    if not below:
        os.fstat(calls)
        os._exit(0)
    assert os.waitpid(below, 0)[1] == 0
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def run(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_blocked_signals_do_not_reach_the_thread():
    run(BLOCKED)


def test_a_grandchild_keeps_the_files_of_a_forked_child():
    run(OF_A_CHILD)


def test_output_of_a_signal_handler_that_interrupts_a_write_follows_it() -> None:
    r, w = os.pipe()
    outlet = Outlet(w, lambda: 7, UNSHIELDED)

    def handler() -> None:
        with outlet.lock:  # of the interrupted write, on this thread
            outlet.text(LOG_STDOUT, "interrupted\n")

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    outlet.text(LOG_STDOUT, "later\n")
    os.close(w)
    reader = Reader(r)
    assert [frame[4] for frame in (reader.next(), reader.next()) if frame] == [b"interrupted\n", b"later\n"]
    os.close(r)


def test_output_beyond_the_rate_is_counted_where_it_is_written() -> None:
    # The agent would read it only to drop it; a frame that is too large would end the worker.
    r, w = os.pipe()
    outlet = Outlet(w, lambda: 7, UNSHIELDED)
    outlet.record({"level": "info", "logger": "t", "message": "m", "fields": {"blob": "x" * 300_000}})
    outlet.record({"level": "info", "logger": "t", "message": "m"})
    outlet.settle(7)
    os.close(w)
    reader = Reader(r)
    assert reader.next() == (LOG, LOG_RECORD, 0, 7, b'{"level": "info", "logger": "t", "message": "m"}')
    frame = reader.next()
    assert frame is not None
    assert frame[:4] == (LOG, LOG_STDERR, 0, 7) and re.fullmatch(rb"\[300\d\d\d bytes of output left out\]", frame[4])
    assert reader.next() is None


def test_output_after_the_end_of_calls_takes_no_room() -> None:
    r, w = os.pipe()
    worker = plain.Worker([])
    worker._outlet.begin(w)

    def late(call: int) -> None:
        threads.running.set(call)
        worker._outlet.text(LOG_STDOUT, "a line\nand a half")

    for call in range(1, 9):
        worker._channel.running = call + 1
        thread = threading.Thread(target=late, args=(call,))
        thread.start()
        thread.join()
    os.close(w)
    os.close(r)
    assert (list(worker._outlet.partial), list(worker._outlet.budgets)) == ([(0, LOG_STDOUT)], [0])
