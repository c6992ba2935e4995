"""Which node the client calls."""

import asyncio
import collections
import itertools
import math
from types import SimpleNamespace

import pytest

from toolmesh._client import routes
from toolmesh._client.call import Call, Pending
from toolmesh._client.connection import Connection


def route(*nodes):
    known = routes.Route()
    known.take({"nodes": [{"node": name, "boot": "1", "in_flight": 0, "slots": 8, **more} for name, more in nodes]})
    return known


def drawn(known, times=2000):
    return collections.Counter(known.choose(lambda place: True).node for _ in range(times))


def test_nodes_are_drawn_by_their_weights():
    known = route(("one", {}), ("two", {}), ("slow", {"weight": 0.01}))
    counts = drawn(known)
    assert counts["one"] > 700 and counts["two"] > 700 and counts["slow"] < 100
    known.take({"nodes": [{"node": "slow", "boot": "1", "in_flight": 0, "slots": 8, "weight": 7}]})
    assert known.choose(lambda place: True).weight == 1  # out of bounds


def test_the_freer_of_two():
    known = route(("one", {}), ("full", {"in_flight": 8}))
    assert drawn(known)["full"] < 800  # both draws met it
    busy = next(place for place in known.places if place.node == "one")
    busy.ours = 9
    assert drawn(known)["one"] < 800
    before = busy
    known.take({"nodes": [{"node": "one", "boot": "1", "in_flight": 1, "slots": 4}]})
    assert known.places == [before] and before.ours == 9 and before.load == 0.25


def test_a_node_that_refused_is_passed_over():
    known = route(("one", {}), ("two", {}))
    known.places[0].full = math.inf
    assert set(drawn(known, 100)) == {"two"}
    known.places[1].full = math.inf
    assert known.choose(lambda place: True) is None


def test_when_the_registry_is_asked():
    asked = []

    def beside(question):
        question.close()
        asked.append(question)

    known = routes.Routes(SimpleNamespace(beside=beside))

    def asks(tool: str) -> bool:
        before = len(asked)
        known.learn(Call("s", tool, b"", "r"))
        return len(asked) > before

    assert asks("t") and not asks("t") and asks("other")
    first = known._known["s", "t"]
    first.asked -= routes.FRESH
    assert asks("t") and known._known["s", "t"] is first
    first.take({"nodes": [{"node": "n", "boot": "b"}]})
    first.asked -= routes.FRESH / 2
    assert not asks("t")
    first.places.clear()
    assert asks("t")


@pytest.mark.parametrize("told", [{"slots": math.inf}, {"in_flight": math.nan}, {"slots": None}, {}, "n"])
def test_a_malformed_answer_about_nodes_is_left_out(told):
    async def registry(*_):
        return {"nodes": [{"node": "n", "boot": "b", **told} if told and told != "n" else told]}

    async def main():
        known, route = routes.Routes(SimpleNamespace(registry=registry)), routes.Route()
        await known._ask(route, "s", "t")
        assert route.places == []

    asyncio.run(main())


def test_a_weight_that_is_no_number_is_the_usual_one():
    route = routes.Route()
    route.take({"nodes": [{"node": "n", "boot": "b", "weight": math.nan}]})
    assert route.places[0].weight == 1.0


def test_a_refused_publish_fails_the_call_that_it_is_about():
    async def refuse():
        connection = object.__new__(Connection)
        connection.pending, connection.numbers, connection.inbox = {}, itertools.count(), "i."
        connection._nc = None
        runs, refused, later = (Pending(connection, "tools.s.T") for _ in range(3))
        runs.sign += 1  # its node has said so

        def said() -> list[tuple[str, bool | None] | None]:
            return [(one.error.code, one.error.started) if one.error else None for one in (runs, refused, later)]

        denied = ("permission_denied", False)
        for want in ([None, denied, None], [None, denied, denied], [None, denied, denied]):
            await connection._failed(Exception('nats: permissions violation for publish to "tools.s.t"'))
            assert said() == want

        # The server's text has no upper case with newer versions of nats-py: which of two is refused is unknown.
        runs, refused, later = Pending(connection, "tools.s.U"), Pending(connection, "tools.s.u"), later
        await connection._failed(Exception('nats: permissions violation for publish to "tools.s.u"'))
        assert said()[:2] == [None, None]

    asyncio.run(refuse())
