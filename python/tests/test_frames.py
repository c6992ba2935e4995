"""The reader's looks for the next frame, over a real pipe."""

import os

from toolmesh._worker.wire import frames
from toolmesh._worker.wire.frames import CALL, HEADER, Reader


def test_a_look_finds_what_is_there_and_takes_nothing() -> None:
    r, w = os.pipe()
    reader = Reader(r)
    os.write(w, HEADER.pack(2, CALL, 0, 0, 7) + b"{}")
    for _ in range(3):
        reader.look()
    assert reader.next() == (CALL, 0, 0, 7, b"{}")


def test_looks_in_vain_are_given_up_and_tried_again() -> None:
    r, w = os.pipe()
    reader = Reader(r)
    looks = 0

    def counted(timeout: int) -> list[object]:
        nonlocal looks
        if not looked:
            looks += 1
            looked.append(None)
        return []

    looked: list[None] = []
    reader._poll = counted
    for _ in range(frames._TRIES + 2 * frames._AGAIN):
        looked.clear()
        reader.look()
    assert looks == frames._TRIES + 2
    os.write(w, HEADER.pack(0, CALL, 0, 0, 8))
    reader._poll = None  # its own again
    for _ in range(frames._AGAIN):
        reader.look()  # one of them finds the frame, and looks pay again
    reader._poll = counted
    looked.clear()
    reader.look()
    assert looked
