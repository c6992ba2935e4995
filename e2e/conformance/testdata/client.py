"""Runs the cases by our Python client: `client.py sync|async URL`, cases on stdin, a line of JSON with the outcomes of
each on stdout."""

import asyncio
import base64
import json
import logging
import pathlib
import sys
import time
from typing import Any

import toolmesh
from toolmesh import AsyncMesh, Mesh

# A busy machine is no fault of the client's; all else that -X dev complains of is.
logging.getLogger("asyncio").addFilter(lambda record: record.msg != "Executing %s took %.3f seconds")


def plain(value: Any) -> Any:
    """A value of the cases as Python's: {"$b64"} is bytes, {"$nan"} and {"$object"} cannot travel."""
    if isinstance(value, dict):
        if "$b64" in value:
            return base64.b64decode(value["$b64"])
        if "$nan" in value:
            return float("nan")
        if "$object" in value:
            return object()
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def error(failure: toolmesh.MeshError) -> dict[str, Any]:
    return {"code": failure.code, "message": failure.message, "started": failure.started, "origin": failure.origin,
            "details": failure.details, "class": type(failure).__name__}


def options(step: dict[str, Any]) -> dict[str, Any]:
    return {name: step[name] for name in ("timeout", "rpc_id", "isolation") if name in step}


def until_file(step: dict[str, Any]) -> dict[str, Any]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        path = pathlib.Path(step["file"])
        if path.exists() and path.read_text():
            return {"value": path.read_text()}
        time.sleep(0.01)
    return {"value": None}


class Async:
    def __init__(self, url: str) -> None:
        self.mesh = AsyncMesh(url)

    async def step(self, step: dict[str, Any]) -> Any:
        mesh = self.mesh.session(step["session"]) if "session" in step else self.mesh
        try:
            if "call" in step:
                work = mesh.call(step["call"], plain(step.get("args")), **options(step))
                if "cancel_after" not in step:
                    return {"value": await work}
                task = asyncio.ensure_future(work)
                await asyncio.sleep(step["cancel_after"])
                cancelled = await mesh.cancel(step["rpc_id"])
                try:
                    return {"value": await task}
                except toolmesh.MeshError as failure:
                    return {"error": error(failure), "cancelled": cancelled}
            if "together" in step:
                return list(await asyncio.gather(*[self.step(one) for one in step["together"]]))
            if "describe" in step:
                tool = await mesh.tool(step["describe"])
                return {"value": {"input_schema": tool.input_schema, "streaming": tool.streaming}}
            if "file" in step:
                return await asyncio.to_thread(until_file, step)
        except toolmesh.MeshError as failure:
            return {"error": error(failure)}
        items = []
        stream = mesh.stream(step["stream"], plain(step.get("args")), **options(step))
        try:
            async for item in stream:
                items.append(item)
                if len(items) == step.get("take"):
                    break
        except toolmesh.MeshError as failure:
            return {"items": items, "error": error(failure)}
        finally:
            await stream.aclose()
        return {"items": items}

    def run(self, steps: list[dict[str, Any]]) -> list[Any]:
        async def main() -> list[Any]:
            async with self.mesh:
                return [await self.step(step) for step in steps]

        return asyncio.run(main())


class Sync:
    def __init__(self, url: str) -> None:
        self.mesh = Mesh(url)

    def step(self, step: dict[str, Any]) -> Any:
        mesh = self.mesh.session(step["session"]) if "session" in step else self.mesh
        try:
            if "call" in step:
                if "cancel_after" not in step:
                    return {"value": mesh.call(step["call"], plain(step.get("args")), **options(step))}
                one = Together(self, {name: value for name, value in step.items() if name != "cancel_after"})
                time.sleep(step["cancel_after"])
                cancelled = mesh.cancel(step["rpc_id"])
                return {**one.outcome(), "cancelled": cancelled}
            if "together" in step:
                return [one.outcome() for one in [Together(self, one) for one in step["together"]]]
            if "describe" in step:
                tool = mesh.tool(step["describe"])
                return {"value": {"input_schema": tool.input_schema, "streaming": tool.streaming}}
            if "file" in step:
                return until_file(step)
        except toolmesh.MeshError as failure:
            return {"error": error(failure)}
        items = []
        stream = mesh.stream(step["stream"], plain(step.get("args")), **options(step))
        try:
            for item in stream:
                items.append(item)
                if len(items) == step.get("take"):
                    break
        except toolmesh.MeshError as failure:
            return {"items": items, "error": error(failure)}
        finally:
            stream.close()
        return {"items": items}

    def run(self, steps: list[dict[str, Any]]) -> list[Any]:
        return [self.step(step) for step in steps]


class Together:
    """A step on a thread of its own."""

    def __init__(self, client: Sync, step: dict[str, Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(client.step, step)

    def outcome(self) -> Any:
        try:
            return self.future.result()
        finally:
            self.pool.shutdown()


def main() -> None:
    client = Sync(sys.argv[2]) if sys.argv[1] == "sync" else Async(sys.argv[2])
    for case in json.load(sys.stdin):
        print(json.dumps({"id": case["id"], "outcomes": client.run(case["steps"])}), flush=True)


main()
