"""The reader of frames, over a real pipe."""

from __future__ import annotations

import os
import typing

import pytest

from toolmesh._worker.wire.frames import CALL, HEADER, PING, Reader

if typing.TYPE_CHECKING:
    from toolmesh._worker.wire.frames import Frame



def write(*frames: tuple[int, int, bytes]) -> bytes:
    return b"".join(HEADER.pack(len(body), kind, 0, 0, call) + body for kind, call, body in frames)


@pytest.mark.parametrize("size", [1, 7, 16, 17, 100_000])
def test_frames_are_read_from_pieces_of_any_size(size: int) -> None:
    wanted = [(CALL, 7, b"{}"), (PING, 8, b""), (CALL, 9, b"x" * 3000)]
    data = write(*wanted)
    r, w = os.pipe()
    reader = Reader(r)
    got: list[Frame] = []
    for at in range(0, len(data), size):
        os.write(w, data[at : at + size])
    os.close(w)
    while (frame := reader.next()) is not None:
        got.append(frame)
    assert [(kind, call, body) for kind, _, _, call, body in got] == wanted


def test_a_frame_in_many_pieces_is_kept_as_few() -> None:
    # The pieces are counted with each read: thousands of them, as from a pipe of one page, would take seconds.
    data = write((CALL, 7, b"x" * 3000))
    r, w = os.pipe()
    reader = Reader(r)
    taken: list[Frame] = []
    for one in data:
        os.write(w, bytes((one,)))
        assert not taken and reader.read() and len(reader._chunks) <= 1001
        reader.give(taken.append)
    assert taken == [(CALL, 0, 0, 7, b"x" * 3000)]


def test_surplus_bytes_begin_the_next_frame() -> None:
    r, w = os.pipe()
    reader = Reader(r)
    os.write(w, write((CALL, 1, b"{}"), (CALL, 2, b"[]")))
    taken: list[Frame] = []
    assert reader.take(taken.append)
    assert taken == [(CALL, 0, 0, 1, b"{}")]
    assert reader.next() == (CALL, 0, 0, 2, b"[]")
    os.close(w)
    assert not reader.take(taken.append)
