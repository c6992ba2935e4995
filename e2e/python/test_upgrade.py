"""A tool whose index is upgraded, or whose result does not fit, while programs hold a description of it."""

import asyncio
import logging
import pathlib
import traceback

import pytest
from conftest import Started

from toolmesh import AsyncMesh, InvalidArguments, Mesh, ToolNotFound
from toolmesh.dspy import BatchToolProcessor, RPCProxyTool, ToolBridgeManager

pytestmark = pytest.mark.usefixtures("binary")

BEFORE = """
from collections.abc import Iterator

def pay(amount: int, note: bytes = b"") -> int:
    return f"{amount} paid"

def count(to: int) -> Iterator[int]:
    yield from range(to)
"""
AFTER = BEFORE.replace("amount: int, note: bytes", "amount: int, currency: str, note: str").replace(
    'b""', '""').replace("to: int", "to: int, by: int")


def install(rich: Started, folder: pathlib.Path, source: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tools.toml").write_text('[index]\ntools = ["shop.pay", "shop.count"]\n')
    (folder / "shop.py").write_text(source)
    rich.run("install", f"--name={folder.name}", str(folder))


def test_a_refusal_says_that_the_tool_was_upgraded(rich: Started, tmp_path: pathlib.Path) -> None:
    with Mesh(rich.url) as mesh:
        install(rich, tmp_path / "shop", BEFORE)
        pay, count = mesh.tool("shop.shop.pay"), mesh.tool("shop.shop.count")
        proxy = RPCProxyTool("shop.shop.pay", mesh=mesh, told=pay)
        assert pay(3, b"a") == "3 paid" and list(count.stream(2)) == [0, 1]

        async def described() -> None:
            async with AsyncMesh(rich.url) as other:
                one, items = await other.tool("shop.shop.pay"), await other.tool("shop.shop.count")
                with pytest.raises(InvalidArguments) as refused:
                    install(rich, tmp_path / "shop", AFTER)
                    await one(3)
                assert "describe it again" in str(refused.value)
                for work in (one("three"), (await other.submit(one, {"amount": 3})).wait(),
                             other.batch([(one, {"amount": 3})]), anext(items.stream("x")),
                             anext(count.astream("x"))):
                    with pytest.raises(InvalidArguments, match="describe it again"):
                        await work
                assert await one(3, currency="EUR") == "3 paid", "the tool takes it now"

        asyncio.run(described())
        again = mesh.tool("shop.shop.pay")
        changed = (f"the tool's revision changed since it was described ({pay.revision[:12]} → {again.revision[:12]}): "
                   "describe it again")
        three = {"amount": 3}
        for call in (
            lambda: pay(3), lambda: asyncio.run(pay.acall(3)), lambda: list(count.stream(3)), lambda: count(3),
            lambda: proxy(amount=3), lambda: mesh.batch([(pay, three)]),
            lambda: asyncio.run(mesh.abatch([(proxy, three), count])), lambda: mesh.submit(pay, three).wait(),
        ):
            with pytest.raises(InvalidArguments, match="is required") as refused:
                call()
            assert str(refused.value).count(changed) == 1

        async def submitted() -> None:
            await (await mesh.asubmit(pay, three)).wait()

        for call in (lambda: pay("three"), lambda: proxy("three"), lambda: asyncio.run(submitted())):
            with pytest.raises(InvalidArguments) as refused:
                call()
            assert str(refused.value).count(changed) == 1
        more = {"currency": "EUR"}  # which the description lacks, and the tool takes now
        assert {pay(3, **more), asyncio.run(pay.acall(3, **more)), proxy(3, **more)} == {"3 paid"}
        assert list(count.stream(3, by=2))
        manager = ToolBridgeManager(mesh)
        manager.tools[proxy.tool_id] = proxy
        ends = BatchToolProcessor(manager).process_batch([{"tool_id": proxy.tool_id, "kwargs": three}] * 2)
        assert all(changed in one["error"]["message"] for one in ends)
        with pytest.raises(InvalidArguments, match="is required") as refused:
            again._mesh.call(again.id, {"amount": 3})
        assert "described" not in str(refused.value), "what was not described before is not said to have changed"
        assert again(3, "EUR") == "3 paid"
        named = RPCProxyTool("shop.pay", mesh=mesh, told=pay)
        with pytest.raises(InvalidArguments, match="is required") as refused:
            named(amount=3)
        assert changed in str(refused.value)
        for given in ("shop.shop.nothing", "shop.shop.never"):
            named.tool_id = given
            with pytest.raises(ToolNotFound, match=given):
                named(amount=3)


def test_a_result_that_does_not_fit_is_logged_once(
    rich: Started, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture,
) -> None:
    with Mesh(rich.url) as mesh:
        install(rich, tmp_path / "stall", BEFORE)
        with caplog.at_level(logging.DEBUG, "toolmesh"):
            for _ in range(3):
                assert mesh.call("stall.shop.pay", {"amount": 3}) == "3 paid"
    said = [(one.levelname, one.getMessage()) for one in caplog.records if "stall.shop.pay" in one.getMessage()]
    assert [level for level, _ in said] == ["WARNING", "DEBUG", "DEBUG", "DEBUG"], said
    assert "integer" not in said[0][1] and "integer" in said[1][1]


def test_errors_of_real_calls_have_no_frames_of_ours(rich: Started) -> None:
    with Mesh(rich.url) as mesh:
        fails, described = mesh.tool("rich.rich.fails"), mesh.tool("rich.rich.size")

        async def aiterated() -> None:
            async for _ in mesh.astream("rich.rich.fails", {"account": "a"}):
                pass

        for call in (
            lambda: mesh.call("rich.rich.fails", {"account": "a"}), lambda: fails("a"), lambda: list(fails.stream("a")),
            lambda: mesh.batch([("rich.rich.fails", {"account": "a"})]), lambda: list(mesh.stream("rich.rich.nothing")),
            lambda: mesh.execute({"name": "rich-rich-fails", "arguments": {"account": "a"}}), lambda: described(),
            lambda: described(text=3), lambda: mesh.tool("rich.rich.nothing"), lambda: mesh.install("no/such@index"),
        ):
            with pytest.raises(Exception) as raised:
                call()
            found = [one for one in traceback.extract_tb(raised.value.__traceback__) if "/toolmesh/" in one.filename]
            assert not found
        for work in (lambda: mesh.acall("rich.rich.fails", {"account": "a"}), lambda: fails.acall("a"), aiterated,
                     lambda: mesh.abatch([("rich.rich.fails", {"account": "a"})])):
            with pytest.raises(Exception) as raised:
                asyncio.run(work())
            found = [one for one in traceback.extract_tb(raised.value.__traceback__) if "/toolmesh/" in one.filename]
            assert not found
