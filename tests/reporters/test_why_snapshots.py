"""The gap and the gate as people and programs get them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import InputError
from tracelens.reporters.gap import VIEW as GAP
from tracelens.reporters.gate import VIEW as GATE
from tracelens.reporters.sheet import View

from .why_fixture import gap, gap_of_nothing, gate

SNAPSHOTS = Path(__file__).parent / "snapshots"
ANSWERS: dict[str, tuple[Callable[[], Any], View[Any]]] = {
    "gap": (gap, GAP), "gap-nothing": (gap_of_nothing, GAP), "gate": (gate, GATE)}  # fmt: skip
FORMS: dict[str, tuple[str, int | None]] = {
    "80.txt": ("table", 80), "160.txt": ("table", 160), "md": ("markdown", None), "csv": ("csv", None),
    "json": ("json", None)}  # fmt: skip


def shown(answer: str, form: str) -> str:
    make, view = ANSWERS[answer]
    chosen, width = FORMS[form]
    out = io.StringIO()
    view.render(make(), chosen, out, width=width)
    return out.getvalue()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_snapshot(answer: str, form: str) -> None:
    text = shown(answer, form)
    path = SNAPSHOTS / f"{answer}{'-' if form[0].isdigit() else '.'}{form}"
    if os.environ.get("TRACELENS_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("answer", ANSWERS)
def test_tables_fit_and_nothing_is_obeyed(answer: str) -> None:
    for form in FORMS:
        text = shown(answer, form)
        assert "\x1b" not in text
        assert "<b>" not in text or form in ("csv", "json") or form.endswith("txt")
    assert max(map(len, shown(answer, "80.txt").splitlines())) <= 80
    assert max(map(len, shown(answer, "160.txt").splitlines())) <= 160


def test_json_says_every_term_and_decision() -> None:
    document = json.loads(shown("gap", "json"))
    (code, hostile), total = document["strata"], document["total"]
    assert [t["name"] for t in total["terms"]] == [t.name for t in gap().total.terms]
    assert hostile["terms"][0]["points"] is None
    assert code["unmeasured"] == ["rollback", "repack"]
    gated = json.loads(shown("gate", "json"))
    assert [s["decision"] for s in gated["strata"]] == ["GO", "NO_GO", "INCONCLUSIVE"]
    assert gated["decision"] == "NO_GO"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="html"):
        GAP.render(gap(), "html", io.StringIO())
