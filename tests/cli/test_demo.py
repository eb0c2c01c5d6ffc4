"""`demo` on the packaged samples: the article's story, and a lake to play with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.resources import room

pytest.importorskip("tracelens.analysis.report")
if not (room("samples") / "rtp-site" / "k5").is_dir():
    pytest.skip("the samples are not there yet", allow_module_level=True)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "a lake"
    assert run(["demo", "--lake", str(lake), "--json"]) == 0
    first = capsys.readouterr()
    assert first.err == ""
    told = json.loads(first.out)
    assert set(told["reports"]) == {"vllm-k5", "rtp-k5"}
    for report in told["reports"].values():
        total = report["total"]
        assert total["speedup_claimed"] == pytest.approx(2.4)
        assert 1.45 < total["speedup_observed"] < 1.75
        assert {row["key"]["task_type"] for row in report["strata"]} == {"chat", "extraction", "summarise", "writing"}

    assert run(["demo", "--lake", str(lake)]) == 0
    again = capsys.readouterr().out
    assert again.startswith("Planned 2.40x, observed 1.")
    assert f"tracelens report --lake '{lake}'" in again
    assert all(len(line) <= 80 or line.startswith("  tracelens ") for line in again.split("\n"))
    # The second run has added nothing.
    assert run(["query", "SELECT count(*) AS n FROM sources", "--lake", str(lake), "--json"]) == 0
    sources = json.loads(capsys.readouterr().out)[0]["n"]
    logs = [
        p
        for p in room("samples").glob("*-site/*/*")
        if p.is_file() and p.name != "truth.json" and not p.name.startswith(".")
    ]
    assert sources == len(logs)
