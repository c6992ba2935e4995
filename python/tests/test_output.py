"""The thread that writes what is held back."""

import os
import signal
import time

from toolmesh._worker.output import NoShield, Outlet


def test_what_a_tool_blocks_does_not_come_to_the_thread():
    r, w = os.pipe()
    outlet = Outlet(w, lambda: 0, NoShield())
    came = []
    handler = signal.signal(signal.SIGALRM, lambda *_: came.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert outlet.gather(b"held")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        assert os.read(r, 100) == b"held"  # written by the thread, which stays for some looks
        os.kill(os.getpid(), signal.SIGALRM)
        while outlet._flushing:
            time.sleep(0.001)
        assert signal.SIGALRM in signal.sigpending()
        assert not came
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, handler)
        os.close(r)
        os.close(w)
