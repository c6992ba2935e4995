"""Which node the client calls."""

import collections

from toolmesh import _routes


def route(*nodes):
    known = _routes.Route()
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
    known.places[0].refused(60)
    assert set(drawn(known, 100)) == {"two"}
    known.places[1].refused(60)
    assert known.choose(lambda place: True) is None


def test_when_the_registry_is_asked():
    known = _routes.Routes(None)  # type: ignore[arg-type]  # it asks nobody
    first = known.stale("s", "t")
    assert first is not None and known.stale("s", "t") is None and known.stale("s", "other") is not first
    first.asked -= _routes.FRESH
    assert known.stale("s", "t") is first
    first.take({"nodes": [{"node": "n", "boot": "b"}]})
    first.asked -= _routes.FRESH / 2
    assert known.stale("s", "t") is None
    first.forget(first.places[0])
    assert known.stale("s", "t") is first
