"""When a cancellation is raised, and in whom."""

import asyncio

import pytest

from toolmesh._worker.calls.guard import PAGE_CANCEL, PAGE_HEARD, Cancelled, Guard


def test_a_cancellation_waits_for_the_end_of_a_write():
    page = memoryview(bytearray(8 * 8)).cast("Q")
    guard = Guard(page)
    guard.armed = page[PAGE_CANCEL] = 7
    with pytest.raises(Cancelled):
        with guard:
            guard.handle(0, None)
            written = True
    assert written and page[PAGE_HEARD] == 7
    guard.handle(0, None)  # raised once


def test_a_late_cancellation_hits_no_other_call():
    page = memoryview(bytearray(8 * 8)).cast("Q")
    guard = Guard(page)
    guard.armed, page[PAGE_CANCEL] = 8, 7
    guard.handle(0, None)
    assert page[PAGE_HEARD] == 0


def test_a_cancellation_meets_the_end_of_the_loop():
    page = memoryview(bytearray(8 * 8)).cast("Q")
    guard = Guard(page)
    guard.armed = page[PAGE_CANCEL] = 7
    loop = asyncio.new_event_loop()
    guard.tasked(loop, None, ())
    loop.close()  # and asyncio.run has yet to return
    with pytest.raises(Cancelled):
        guard.handle(0, None)
    assert page[PAGE_HEARD] == 7
