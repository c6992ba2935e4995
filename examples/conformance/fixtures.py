"""Tools by the names that the conformance suite of the Model Context Protocol calls."""

import base64
import struct
import time
import zlib
from collections.abc import Iterator
from typing import Any

from toolmesh import mesh


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


def test_tool_with_progress():
    """Reports how far it is."""
    for percent in (0, 50, 100):
        mesh.progress(percent / 100, f"Completed step {percent} of 100")
        time.sleep(0.08)
    return "done"


def test_streaming_elicitation() -> Iterator[str]:
    """Yields items while the call is under way."""
    for step in range(3):
        yield f"Step {step}"
        time.sleep(0.08)


def test_error_handling():
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


def test_tool_with_logging():
    """Says what it does, which clients with a log level hear of as log messages."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        mesh.progress(text=text)
        time.sleep(0.08)
    return "logged"


def test_logging_tool():
    """Says one thing."""
    mesh.progress(text="This is a log message")
    return "logged"


def test_missing_capability():
    """Is for clients that declare sampling."""
    return "done"


def test_x_mcp_header(region: str = "") -> str:
    """Takes an argument that clients mirror into a header."""
    return region


def json_schema_2020_12_tool(
    name: str = "", address: dict[str, str] | None = None, contactMethod: str = "", phone: str = "", email: str = ""
):
    """Has words of JSON Schema 2020-12 in its schema."""
    return f"{name} {address} {contactMethod} {phone} {email}"
