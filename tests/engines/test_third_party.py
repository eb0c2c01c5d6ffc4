"""A reader in a package of its own, as `samples/third-party` shows it: announced by its entry point alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tracelens.resources import room

HOME = room("samples") / "third-party"
TRUTH = json.loads((HOME / "truth.json").read_text(encoding="utf-8"))


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """What an installer would leave behind: the package, and its entry points beside it."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = tmp_path / "site" / f"acme_tracelens-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(points))
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(HOME), *sys.path])}


def call(site: dict[str, str], *args: str) -> Any:
    """What the command line answers in JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", *args], env=os.environ | site, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_the_log_is_recognised_read_and_reported(site: dict[str, str], tmp_path: Path) -> None:
    log, lake = str(HOME / "acme.log"), str(tmp_path / "lake")
    found = call(site, "inspect", log, "--json")
    assert found["sources"][0]["surfaces"] == {"acme.round": TRUTH["rounds"], "acme.start": 1}
    assert found["sources"][0]["rejects"] == TRUTH["rejects"]
    told = call(site, "ingest", log, "--lake", lake, "--engine", "acme", "--json")
    assert (told["rows"]["rounds"], told["rejects"]) == (TRUTH["rounds"], TRUTH["rejects"])
    sums = "sum(drafted) as drafted, sum(accepted) as accepted, sum(emitted) as emitted, sum(draft_us) as draft_us"
    (row,) = call(site, "query", f"select count(*) as rounds, {sums} from rounds", "--lake", lake, "--format", "json")
    assert row == {name: TRUTH[name] for name in row}
    total = call(site, "report", "--lake", lake, "--json")["total"]
    assert total["draft_accept_ratio"] == pytest.approx(TRUTH["accepted"] / TRUTH["drafted"])
    runs = call(site, "query", "select engine, engine_version, model, num_speculative_tokens k from runs", "--lake",
                lake, "--format", "json")  # fmt: skip
    assert runs == [{"engine": "acme", "engine_version": "1.2.0", "model": "acme-7b", "k": 4}]


def test_a_reader_that_does_not_load_is_named(site: dict[str, str], tmp_path: Path) -> None:
    (points,) = (tmp_path / "site").rglob("entry_points.txt")
    points.write_text("[tracelens.engines]\nbroken = acme_tracelens:NOTHING\n")
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "inspect", str(HOME / "acme.log")],
        env=os.environ | site, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "broken (acme_tracelens:NOTHING)" in done.stderr
