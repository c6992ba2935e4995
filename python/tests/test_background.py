"""The loop of all Mesh objects, as threads use it."""

import asyncio
import gc
import signal
import threading
import time

import pytest

import toolmesh
from toolmesh._client.background import Background


def test_no_thread_is_an_error_and_the_next_call_tries_again(monkeypatch):
    one = Background()

    async def work():
        return 7

    def none(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(toolmesh.Unavailable, match="thread"):
            one.run(work)
    assert one.run(work) == 7
    one.end()


@pytest.mark.parametrize("after", [0.0, 0.0001, 0.001, 0.05])
def test_an_interrupt_cancels_whenever_it_comes(after):
    one, running = Background(), set()

    async def work():
        running.add(1)
        try:
            await asyncio.sleep(60)
        finally:
            running.discard(1)

    async def nothing():
        pass

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    one.run(nothing)
    # What other tests left would be collected meanwhile: an interrupt that comes in a finalizer reaches nobody.
    gc.collect()
    gc.disable()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, max(after, 1e-6))
            one.run(work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    end = time.monotonic() + 30
    while running and time.monotonic() < end:
        one.run(nothing)
    assert not running
    one.end()
