"""Secrets in texts for people."""

import base64

import pytest

from toolmesh._worker.describing import redaction


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    for name, value in (("_known", set()), ("_pattern", None), ("_edges", {})):
        monkeypatch.setattr(redaction, name, value)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("ahead", range(5))
@pytest.mark.parametrize("behind", range(5))
def test_what_is_left_of_a_secret_in_base64_tells_nothing_of_it(encode, ahead, behind) -> None:
    left = set()
    for secret in ("tok-5f3a9c0e", "~~~???>>>~~~", "zzzzzzzzzzzz"):
        redaction.add([secret])
        text = encode(("u" * ahead + secret + ":" * behind).encode()).decode()
        left.add(redaction.text(f"Basic {text}."))
        assert redaction.tree({"a": [text]}) == {"a": [redaction.text(text)]}
    assert len(left) == 1
    assert "***" in left.pop()


def test_what_stands_beside_a_secret_stays() -> None:
    redaction.add(["tok-5f3a9c0e"])
    assert redaction.text("a tok-5f3a9c0e b tok-5f3a9c0e") == "a *** b ***"
    both = base64.b64encode(b"user:tok-5f3a9c0e:tok-5f3a9c0e").decode()
    assert redaction.text(both).startswith("dXNlcj") and redaction.text(both).count("***") == 2
