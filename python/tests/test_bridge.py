"""What a host asks of the mesh, and what comes of it."""

import asyncio

import pytest

import toolmesh
from toolmesh import Host, binary
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


def test_the_mesh_of_a_host_is_the_one_that_it_names(monkeypatch, tmp_path):
    """A variable of the environment names another mesh, and the bridge would prefer it."""
    program = tmp_path / "mesh"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(binary, "find", lambda: str(program))
    for one in ("MESH_NATS_URL", "NATS_URL", "NATS_CONTEXT"):
        monkeypatch.setenv(one, "another")
    host = Host(context="mine", nkey="key.nk", slots=3)
    host.tool(len)
    with pytest.raises(toolmesh.Unavailable):
        host.serve()
    found = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    known = {name: value for name, value in found.items() if name.startswith(("MESH_NATS", "NATS", "MESH_SLOTS"))}
    assert known == {"MESH_NATS_CONTEXT": "mine", "MESH_NATS_NKEY": "key.nk", "MESH_SLOTS": "3"}
