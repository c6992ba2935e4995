"""Names and subjects of the client: the protocol's vectors."""

import json
import pathlib

import pytest

from toolmesh import _names

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "protocol" / "vectors.json").read_text())


def test_tokens():
    for one in VECTORS["tokens"]:
        assert _names.token(one["name"]) == one["token"]
        assert _names.hashed(one["token"]) or not one.get("hashed")


def test_refused_names():
    for one in VECTORS["refused_names"]:
        if one["of"] in ("token", "tool"):
            with pytest.raises(ValueError):
                _names.token(one["name"]) if one["of"] == "token" else _names.tool(one["name"])


def test_subjects():
    build = {
        "tool": lambda one: _names.call(one["session"], one["tool"]),
        "node_tool": lambda one: _names.node_call(one["node"], one["session"], one["tool"]),
        "ctl": lambda one: _names.control(one["session"], one["rpc"]),
        "node_ctl": lambda one: _names.control(one["session"], one["rpc"], one["node"]),
        "live": lambda one: _names.live(one["session"], one["rpc"]),
        "replay": lambda one: _names.replay(one["session"], one["rpc"]),
        "payload": lambda one: _names.payload(one["session"], one["payload"]),
        "node_payload": lambda one: _names.payload(one["session"], one["payload"], one["node"]),
        "registry": lambda one: _names.registry(one["session"], one["verb"]),
        "heartbeat": lambda one: _names.heartbeat(one["node"]),
    }
    seen = set()
    for one in VECTORS["subjects"]:
        if one["kind"] in build:
            seen.add(one["kind"])
            assert build[one["kind"]](one) == one["subject"]
    assert seen >= {"tool", "node_tool", "ctl", "node_ctl", "registry", "heartbeat"}


def test_every_code_has_a_class():
    from toolmesh._core import errors

    assert set(errors.CLASSES) == set(VECTORS["codes"])
    assert len(set(errors.CLASSES.values())) == len(errors.CLASSES)
