"""A host that serves on a thread of its own: its end is told, and stop waits for the thread that serves."""

import logging
import threading

import pytest

from toolmesh import Host


class Serving(Host):
    """A host without a mesh, which serves until its test says so, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.until = threading.Event()
        self.ended = threading.Event()

    async def aserve(self, *, signals=False, ready=None):
        if self._runner is not None:
            raise RuntimeError("it serves already")
        self._runner = object()  # type: ignore[assignment]
        ready()
        self.until.wait()
        self._runner = None
        self.ended.set()
        raise ConnectionError("mesh bridge cannot serve any more")


def test_the_end_of_a_host_that_served_is_logged(caplog):
    host = Serving()
    with caplog.at_level(logging.ERROR, "toolmesh"):
        thread = host.start()._thread
        host.until.set()
        assert thread is not None
        thread.join()
    assert "mesh bridge cannot serve any more" in caplog.text


def test_a_second_start_leaves_the_first_thread_to_stop(caplog):
    host = Serving()
    first = host.start()._thread
    with pytest.raises(RuntimeError, match="serves already"):
        host.start()
    assert host._thread is first
    host.until.set()
    assert first is not None
    first.join()
