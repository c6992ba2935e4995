"""The providers of format_tools, and the conversion of the mesh's declarations to those of stores."""

from __future__ import annotations

import enum
import re


class ProviderFormat(str, enum.Enum):
    """The providers, by their names in stores."""

    ANTHROPIC = "anthropic"
    GOOGLE_GEMINI = "google-gemini"
    OPENAI_CHAT = "openai-chat-completions"
    OPENAI_RESPONSES = "openai-responses"

    @classmethod
    def _missing_(cls, value: object) -> ProviderFormat | None:
        return next((one for one, name in RENDERED.items() if name == value), None)  # the mesh's own name


RENDERED = {
    ProviderFormat.ANTHROPIC: "anthropic", ProviderFormat.GOOGLE_GEMINI: "gemini",
    ProviderFormat.OPENAI_CHAT: "openai", ProviderFormat.OPENAI_RESPONSES: "openai-responses",
}
"""The same providers, by the names that the mesh has for them."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def short(name: str, provider: ProviderFormat) -> str:
    """The name of a tool in stores; "" if the provider would refuse it."""
    if provider is ProviderFormat.GOOGLE_GEMINI:
        return name if _DOTTED.fullmatch(name) else ""
    name = name.replace(".", "-")
    return name if _PLAIN.fullmatch(name) else ""
