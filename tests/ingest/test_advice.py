"""What ingest and inspect call missing of the samples of all engines, against what a report gives of the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import run

import tracelens
from tracelens.engines import load
from tracelens.ingest import advice
from tracelens.ingest.holdings import Held
from tracelens.ingest.inspect import Inspection
from tracelens.ingest.inspect import inspect as look
from tracelens.ingest.options import IngestOptions
from tracelens.lake.connection import connect

SAMPLES = Path(__file__).parents[1] / "data" / "surfaces"
NAMES = sorted(p.name for p in SAMPLES.iterdir())


@dataclass(frozen=True)
class Reported:
    """The figures of a report, and the surfaces of the rows, by sample."""

    figures: Mapping[str, Mapping[str, Any]]
    surfaces: Mapping[str, frozenset[str]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("advice")
    lake = folder / "lake"
    for name in NAMES:  # logs of one folder are taken to be of one server
        (folder / "logs" / name).mkdir(parents=True)
        shutil.copy(SAMPLES / name, folder / "logs" / name)
    run(lake, folder / "logs")
    answer = tracelens.open(lake).report(by=("source_id",))
    with connect(lake) as con:
        names = dict(con.execute("select source_id, name from sources").fetchall())
        rows = " union all ".join(f"select source_id, surface from {t}" for t in ("rounds", "requests", "windows"))
        told = con.execute(f"select source_id, list(distinct surface) from ({rows}) group by all").fetchall()
    return Reported(
        {Path(names[s.key["source_id"]]).name: s.figures for s in answer.strata if s.key["source_id"] in names},
        {Path(names[source]).name: frozenset(found) for source, found in told},
    )


@pytest.fixture(scope="module")
def seen() -> Mapping[str, Inspection]:
    return {name: look([str(SAMPLES / name)], IngestOptions(year=2026)) for name in NAMES}


def given(figures: Mapping[str, Any]) -> set[str]:
    """The figures of the advice that a report gives."""
    names = {name for name, value in figures.items() if value is not None}
    if figures["tau_committed_basis"] != "emitted" or not figures["drafted"]:
        # Tokens before stop cuts, which is tau_verified; or plain steps alone.
        names -= {"tau_committed", "tau_drafted"}
    return {figure for figure, synonyms in advice.FIGURES.items() if names & set(synonyms)}


def told(missing: tuple[Any, ...]) -> set[str]:
    return {figure for m in missing for figure in m.figure.split(", ")}


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_of_a_report_is_called_missing(name: str, reported: Reported, seen: Mapping[str, Inspection]) -> None:
    found, figures = seen[name], reported.figures.get(name)
    assert told(found.missing).isdisjoint(found.allowed)
    if figures is not None:
        assert told(found.missing).isdisjoint(given(figures))
        assert given(figures) <= set(found.allowed)


def test_the_samples_give_every_figure(reported: Reported) -> None:
    """Or the test above would say little."""
    assert set().union(*map(given, reported.figures.values())) == set(advice.FIGURES) - {"temperature"}  # it groups
    assert len(reported.figures) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_surface_of_the_rows_is_found(name: str, reported: Reported, seen: Mapping[str, Inspection]) -> None:
    declared = {s.name for engine in load() for s in engine.surfaces}
    assert reported.surfaces.get(name, frozenset()) & declared <= set(seen[name].titles)


def test_a_record_of_two_surfaces(tmp_path: Path) -> None:
    """MLC's counts and times by batch size stand in one JSON object, which is counted once."""
    summary = run(tmp_path / "lake", SAMPLES / "mlc-batch_times.jsonl")
    assert "mlc.batch_times" not in summary.surfaces
    gaps = advice.missing(load(), summary.surfaces, summary.held)
    assert told(tuple(gaps)) == {"near_k_request_share", "tpot_ms", "temperature"}
    titles = look([str(SAMPLES / "mlc-batch_times.jsonl")], IngestOptions()).titles
    assert titles["mlc.batch_times"].gives == ("rho",)
    assert "rho" not in titles["mlc.engine_metrics"].gives


def test_rows_decide_beyond_what_their_surface_promises() -> None:
    """llama.cpp's blocks with rates by position give the lengths, and those without do not."""
    promised = next(s for e in load() for s in e.surfaces if s.name == "llama.request_block")
    assert "hazard" not in promised.gives
    counts = {"counts", "drafted", "rounds", "requests"}
    for more, figures in (
        (set(), {"draft_accept_ratio"}),
        ({"draft_lengths"}, {"draft_accept_ratio", "hazard", "rollback_len", "near_k_request_share"}),
        ({"emitted"}, {"draft_accept_ratio", "tau_committed"}),
        ({"draft_time"}, {"draft_accept_ratio", "rho"}),
    ):
        held = Held({"llama.request_block": counts | more})
        assert set(advice.of_surface(promised, held)[0]) == figures
        gaps = advice.missing(load(), {"llama.request_block"}, {"llama.cpp": held})
        assert told(tuple(gaps)) == set(advice.FIGURES) - figures
