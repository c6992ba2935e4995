"""Does with a client in Python what clients_test.go checks, and prints it as JSON.

Usage: python client.py sdk|fastmcp legacy|modern URL FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def main(sdk: str, era: str, url: str, file: str) -> None:
    mode = "2026-07-28" if era == "modern" else "legacy"
    told = "progress_callback"
    client: Any
    if sdk == "fastmcp":
        from fastmcp import Client

        client, told = Client(url, mode=mode), "progress_handler"
    else:
        import mcp

        client = mcp.Client(url, mode=mode)
    progress: list[str | None] = []
    begun = asyncio.Event()

    async def hear(_progress: float, _total: float | None, message: str | None) -> None:
        progress.append(message)

    async def begins(_progress: float, _total: float | None, _message: str | None) -> None:
        begun.set()

    async with client:
        listed = await client.list_tools()
        tools = listed if sdk == "fastmcp" else listed.tools
        result = await client.call_tool("test_simple_text", {})
        large = await client.call_tool("large", {})  # the SDK checks its structured content against the tool's schema
        (link,) = [one for one in large.content if one.type == "resource_link"]
        read = await client.read_resource(link.uri)
        whole = (read if sdk == "fastmcp" else read.contents)[0].text
        await client.call_tool("test_tool_with_progress", {}, **{told: hear})
        waits = asyncio.ensure_future(client.call_tool("wait", {"path": file}, **{told: begins}))
        await begun.wait()
        waits.cancel()
        await asyncio.wait([waits])
        while not Path(file).exists():  # the tool makes it when it is cancelled
            await asyncio.sleep(0.02)
        said: dict[str, Any] = {"tools": [t.name for t in tools], "text": result.content[0].text, "progress": progress}
        said |= {"cancelled": waits.cancelled(), "rows": len(large.structured_content["result"]), "whole": len(whole)}
        print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
