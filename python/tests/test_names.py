"""Names and subjects of the client: the protocol's vectors."""

import json
import pathlib

import pytest

from toolmesh._client import names

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "protocol" / "vectors.json").read_text())


def test_tokens():
    for one in VECTORS["tokens"]:
        assert names.token(one["name"]) == one["token"]
        assert names.hashed(one["token"]) or not one.get("hashed")


def test_refused_names():
    for one in VECTORS["refused_names"]:
        if one["of"] in ("token", "tool"):
            with pytest.raises(ValueError):
                names.token(one["name"]) if one["of"] == "token" else names.tool(one["name"])


def test_subjects():
    build = {
        "tool": lambda one: names.call(one["session"], one["tool"]),
        "node_tool": lambda one: names.node_call(one["node"], one["session"], one["tool"]),
        "ctl": lambda one: names.control(one["session"], one["rpc"]),
        "node_ctl": lambda one: names.control(one["session"], one["rpc"], one["node"]),
        "live": lambda one: names.live(one["session"], one["rpc"]),
        "replay": lambda one: names.replay(one["session"], one["rpc"]),
        "payload": lambda one: names.payload(one["session"], one["payload"]),
        "node_payload": lambda one: names.payload(one["session"], one["payload"], one["node"]),
        "registry": lambda one: names.registry(one["session"], one["verb"]),
        "heartbeat": lambda one: names.heartbeat(one["node"]),
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
