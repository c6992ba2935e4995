"""What a host asks of the mesh, and what comes of it."""

import asyncio

import pytest

from toolmesh._host.bridge import Asked, Bridge


@pytest.mark.parametrize("frame", [
    {"type": "rpc_stream_chunk", "chunk_type": "data", "data": 1},
    {"type": "rpc_stream_chunk", "chunk_type": "complete"},
    {"type": "rpc_tool_response", "status": "ok", "result": 1},
    {"type": "rpc_stream_chunk", "chunk_type": "error", "error": {"code": "tool_error", "message": "no"}},
])
def test_answers_for_an_abandoned_call_are_dropped(frame):
    """As when a task on another event loop is cancelled: its end is on its way to the bridge's loop."""
    async def main():
        bridge = Bridge(lambda *_: None)
        asked = bridge._asked["c1"] = Asked(bridge, "c1", "a.b")
        asked._answers[0].cancel()
        bridge._give({**frame, "rpc_id": "c1"}, b"")
        assert not bridge.over

    asyncio.run(main())
