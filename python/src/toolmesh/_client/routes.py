"""The choice of a node among those that serve a tool, as the registry lists them.

The first call of a tool goes to the queue group, and so does each call without a known node. The registry is then asked
in parallel, and again every few seconds while the tool is in use. Its weights show which nodes are slow or fail and
should get fewer calls: docs/protocol, section 2. Two nodes are drawn by weight, and the less busy one is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import nats.errors

from .._core import errors
from .call import Call, Link, Place

ROOM = 30.0  # seconds for which a call without a timeout waits for a free slot
FRESH = 5.0  # seconds after which a route in use is refreshed
_ROUTES = 10_000
_REFUSED = 0.1  # max seconds for which a busy node is avoided


@dataclasses.dataclass
class Route:
    """The known nodes that serve a tool."""

    places: list[Place] = dataclasses.field(default_factory=list)
    idempotent: bool = False  # as the tool is declared
    asked: float = 0.0  # when the registry was
    asking: asyncio.Task[None] | None = None

    def choose(self, well: Callable[[Place], bool]) -> Place | None:
        """The less busy one of two nodes that are alive and not full."""
        now = time.monotonic()
        having = [one for one in self.places if one.full <= now and well(one)]
        if len(having) < 2:
            return having[0] if having else None
        first, second = random.choices(having, [one.weight for one in having], k=2)
        return min(first, second, key=Place.taken)

    def take(self, answer: dict[str, Any]) -> None:
        """Records the registry's answer; figures of known nodes are kept."""
        self.idempotent = answer.get("idempotent") is True
        before = {(one.node, one.boot): one for one in self.places}
        self.places = []
        for told in answer.get("nodes", []):
            slots = max(int(told.get("slots", 1)), 1)
            weight = float(told.get("weight", 0)) or 1.0
            load, weight = int(told.get("in_flight", 0)) / slots, max(0.001, min(1.0, weight))
            new = Place(str(told["node"]), str(told["boot"]), load, slots, weight)
            old = before.get((new.node, new.boot))
            if old is not None:
                old.load, old.slots, old.weight = new.load, new.slots, new.weight
            self.places.append(old or new)


def room(failure: errors.MeshError, waits: int) -> float | None:
    """The min wait after a busy refusal: the node's own figure, an hour at most, else a short one, as another node may
    be free. None: another refusal, which does not pass by itself."""
    if failure.started is not False or failure.code != "busy":
        return None
    after = failure.details.get("retry_after_ms")
    if isinstance(after, (int, float)) and after > 0:
        return min(after / 1000, 3600.0)
    return 0.005 * 2.0 ** min(waits, 7) if failure.details.get("limit") == "slots" else None


class Routes:
    """The tools in use."""

    def __init__(self, connection: Link) -> None:
        self._connection = connection
        self._known: dict[tuple[str, str], Route] = {}

    def choose(self, call: Call) -> Place | None:
        """The node to send a call to, if any is known."""
        call.place = None
        route = self._known.get((call.session, call.tool))
        if route is not None and not call.queue and not call.batch:
            self.learn(call)
            call.place = route.choose(self._well)
        return call.place

    def _well(self, place: Place) -> bool:
        node = self._connection.nodes.get(place.node)
        return node is None or node.well(place.boot)

    def refused(self, call: Call, failure: errors.MeshError, after: float) -> bool:
        """Records that the node of a call was busy; returns whether another one may be free. If the caller named the
        node, only that one can run the call."""
        if call.place is None or "node" in failure.details:
            return False
        call.place.full = time.monotonic() + min(after, _REFUSED)
        route = self._known.get((call.session, call.tool))
        return route is not None and route.choose(self._well) is not None

    def elsewhere(self, call: Call) -> bool:
        """Whether a call was sent to one node that does not serve its tool, so that the next attempt goes to any."""
        place, call.place = call.place, None
        if place is None:
            return False
        route = self._known.get((call.session, call.tool))
        if route is not None:
            route.places = [one for one in route.places if one is not place]
        call.queue = True
        return True

    def learn(self, call: Call) -> None:
        """Asks the registry in the background which nodes serve the tool of a call, if its answer is missing or old."""
        route = self._known.get((call.session, call.tool))
        now = time.monotonic()
        if route is None:
            if len(self._known) >= _ROUTES:
                del self._known[next(iter(self._known))]
            route = self._known[call.session, call.tool] = Route()
        elif now - route.asked < (FRESH if route.places else FRESH / 5):
            return
        route.asked, route.idempotent = now, False  # an earlier answer may be wrong by now
        route.asking = self._connection.beside(self._ask(route, call.session, call.tool))

    async def idempotent(self, call: Call, seconds: float | None) -> bool:
        """Whether the tool of a lost call is declared idempotent, so that the call may be repeated. Waits at most that
        long for the registry."""
        self.learn(call)
        route = self._known[call.session, call.tool]
        if route.asking is not None:
            await asyncio.wait([route.asking], timeout=seconds)
        return route.idempotent

    async def _ask(self, route: Route, session: str, tool: str) -> None:
        # With a malformed answer any node does.
        with contextlib.suppress(errors.MeshError, nats.errors.Error, ArithmeticError, AttributeError, LookupError,
                                 TypeError, ValueError):
            route.take(await self._connection.registry(session, "candidates", {"tool": tool}))
