"""Secrets in texts for people, with the forms that the agent gives a worker."""

import base64
import json
import os
import pathlib
import random

import pytest

from toolmesh._worker.schemas import redaction

FORMS = pathlib.Path(__file__).resolve().parents[2] / "executor" / "internal" / "output" / "testdata" / "forms.json"
TOKEN, ODD, QUOTED, SHORT = json.loads(FORMS.read_text())["secrets"]


@pytest.fixture(autouse=True)
def _forms(monkeypatch):
    for name in ("_pattern", "_parts"):
        monkeypatch.setattr(redaction, name, None)
    redaction.use(json.loads(FORMS.read_text())["forms"])


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("ahead", range(5))
@pytest.mark.parametrize("behind", range(5))
def test_parts_of_secrets_in_base64_are_redacted(encode, ahead, behind) -> None:
    left = set()
    for secret in (TOKEN, ODD):
        text = encode(("u" * ahead + secret + ":" * behind).encode()).decode()
        left.add(redaction.text(f"Basic {text}."))
        assert redaction.tree({"a": [text]}) == {"a": [redaction.text(text)]}
    assert len(left) == 1
    assert "***" in left.pop()


def test_text_around_a_secret_stays() -> None:
    assert redaction.text(f"a {TOKEN} b {TOKEN}") == "a *** b ***"
    both = base64.b64encode(f"user:{TOKEN}:{TOKEN}".encode()).decode()
    assert redaction.text(both).startswith("dXNlcj") and redaction.text(both).count("***") == 2
    assert redaction.text(f"{SHORT}! is none of a{SHORT}b") == f"***! is none of a{SHORT}b"


def test_a_text_is_redacted_as_by_the_whole_pattern() -> None:
    forms, pattern = json.loads(FORMS.read_text())["forms"]["texts"], redaction._pattern
    assert pattern is not None
    draw = random.Random(5)
    for _ in range(2000):
        said = "".join(draw.choice([*forms, SHORT, "a", "/", " ", "é", draw.choice(forms)[1:]]) for _ in range(6))
        assert redaction.text(said) == pattern.sub(redaction.MARK, said)


@pytest.mark.parametrize("write", [str, repr, json.dumps, lambda one: json.dumps(one, ensure_ascii=False),
                                   lambda one: repr((repr(one), "'")), lambda one: json.dumps(json.dumps(one))])
def test_a_secret_is_found_as_it_is_written(write) -> None:
    found = redaction.text(write(QUOTED))
    assert "***" in found and "k" not in found and "en" not in found


def test_without_secrets_nothing_changes(monkeypatch) -> None:
    monkeypatch.setattr(redaction, "_pattern", None)
    redaction.use(None)
    assert redaction.text(TOKEN) == TOKEN and redaction.tree([TOKEN, 5]) == [TOKEN, 5]


def test_long_texts_are_cut_outside_of_secrets(monkeypatch) -> None:
    from toolmesh._worker.calls import errors, failures
    from toolmesh._worker.schemas import values

    for size in range(1990, 2001):
        cause = ValueError("x" * size + TOKEN)
        cause.__cause__ = errors.MeshError("tool_error", "x" * size + TOKEN)
        failure = KeyError("x" * (16 * 1024 - 2000 + size - len("KeyError: ")) + TOKEN)
        failure.__cause__ = cause
        told = json.dumps(json.loads(failures.raised(failure, "t")))
        assert TOKEN[:3] not in told and TOKEN[:3] not in values._words(ValueError("x" * (size - 1512) + TOKEN))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_printed_pieces_are_cut_outside_of_secrets(size) -> None:
    from toolmesh._worker.calls.output import UNSHIELDED, Outlet
    from toolmesh._worker.wire.frames import LOG_STDOUT, Reader

    for shift in range(0, 2 * size + len(TOKEN), max(1, size // 7)):
        r, w = os.pipe()
        outlet = Outlet(w, lambda: 7, UNSHIELDED)
        said = "-" * (8192 - shift) + TOKEN + "-" * 9000
        for at in range(0, len(said), size):
            outlet.text(LOG_STDOUT, said[at : at + size])
        outlet.settle(7)
        os.close(w)
        reader, got = Reader(r), ""
        while frame := reader.next():
            got += frame[4].decode()
        assert got == said.replace(TOKEN, "***")
        os.close(r)


def test_a_secret_that_begins_with_another_is_not_cut(monkeypatch) -> None:
    from toolmesh._worker.calls.output import UNSHIELDED, Outlet
    from toolmesh._worker.wire.frames import LOG_STDOUT, Reader

    short, long = "abcd1234", "abcd1234-efgh-5678-ijkl"
    for name in ("_pattern", "_parts", "longest"):
        monkeypatch.setattr(redaction, name, getattr(redaction, name))
    redaction.use({"pattern": f"{long}|{short}", "texts": [long, short]})
    for shift in range(60):
        r, w = os.pipe()
        outlet = Outlet(w, lambda: 7, UNSHIELDED)
        said = "." * (8192 + shift - 30) + long + "." * 9000 + short
        for one in said:
            outlet.text(LOG_STDOUT, one)
        outlet.settle(7)
        os.close(w)
        reader, got = Reader(r), ""
        while frame := reader.next():
            got += frame[4].decode()
        assert got == said.replace(long, "***").replace(short, "***")
        os.close(r)
