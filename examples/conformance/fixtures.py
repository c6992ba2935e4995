"""Tools by the names that the conformance suite of the Model Context Protocol calls."""

import base64
import struct
import time
import zlib
from typing import Annotated, Any, Iterator


def _png() -> str:
    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixel = zlib.compress(b"\x00\xff\x00\x00")
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) + part(b"IDAT", pixel) + part(b"IEND", b"")
    ).decode()


def _wav() -> str:
    sound = bytes(16)
    head = b"RIFF" + struct.pack("<I", 36 + len(sound)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    return base64.b64encode(head + b"data" + struct.pack("<I", len(sound)) + sound).decode()


def _resource(uri: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain", "text": "This is an embedded resource content."}}


def test_simple_text():
    """Answers with a text."""
    return "This is a simple text response for testing."


def test_image_content():
    """Answers with an image."""
    return {"type": "image", "data": _png(), "mimeType": "image/png"}


def test_audio_content():
    """Answers with a sound."""
    return {"type": "audio", "data": _wav(), "mimeType": "audio/wav"}


def test_embedded_resource():
    """Answers with a resource."""
    return _resource("test://embedded-resource")


def test_multiple_content_types():
    """Answers with a text, an image and a resource."""
    return [
        {"type": "text", "text": "Multiple content types test:"},
        {"type": "image", "data": _png(), "mimeType": "image/png"},
        _resource("test://mixed-content-resource"),
    ]


def test_tool_with_progress() -> Iterator[str]:
    """Yields three items, which are its progress."""
    for percent in (0, 50, 100):
        yield f"Completed step {percent} of 100"
        time.sleep(0.08)


def test_streaming_elicitation() -> Iterator[str]:
    """Yields items while the call is under way."""
    yield from test_tool_with_progress()


def test_error_handling():
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


def test_logging_tool():
    """Prints, which no MCP client hears of."""
    print("This is a log message")
    return "logged"


def test_tool_with_logging():
    """Prints, which no MCP client hears of."""
    return test_logging_tool()


def test_missing_capability():
    """Needs nothing of its client."""
    return "done"


def test_x_mcp_header(region: Annotated[str, "mirrored into a header"] = "") -> str:
    """Takes an argument that clients mirror into a header."""
    return region
