"""Real runs of llama-server through every surface that was kept of them: all tell the same, and the truth beside them.

| surface | speaks of | lacks |
|---|---|---|
| request blocks of the log | every request | nothing of the counts |
| responses | the same requests | whether anything drafted, where nothing was |
| round lines (LLAMA_TRACE, -v) | every round with a draft | plain steps |
| statistics lines (-lv 4) | every draft, by drafter | |
| /metrics | every released request | the number of requests, so plain steps |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.engines.llama_cpp_runs import RUNS, ingest_file
from tracelens.engines.base import Tables
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect

REAL = sorted(RUNS.iterdir()) if RUNS.is_dir() else []
RESTARTED = ("tiny-copy-k3",)
pytestmark = pytest.mark.skipif(not REAL, reason="the real runs lie beside the project, not in it")


@dataclass(frozen=True)
class Run:
    """One run: its truth, and the tables of each of its files."""

    truth: Mapping[str, Any]
    log: Tables
    responses: Tables
    metrics: Mapping[str, Tables]
    slots: Tables

    @property
    def requests(self) -> pl.DataFrame:
        assert self.log.requests is not None
        return self.log.requests


@pytest.fixture(scope="module", params=REAL, ids=lambda folder: folder.name)
def run(request: pytest.FixtureRequest) -> Run:
    folder: Path = request.param

    def tables(pattern: str) -> Tables:
        found, rejects = ingest_file(folder, pattern)
        assert rejects == []
        return found

    pages = ("before", "after", "series")
    metrics = {p: tables(f"metrics_{p}.txt*") for p in pages if list(folder.glob(f"metrics_{p}.txt*"))}
    truth = json.loads((folder / "truth.json").read_text())
    return Run(truth, tables("server.log*"), tables("responses.jsonl*"), metrics, tables("slots_end.json"))


def added(frame: pl.DataFrame | None, column: str) -> int:
    """Sum of a column; 0 where there are no rows."""
    return 0 if frame is None or column not in frame.columns else int(frame[column].sum())


def survivors(rounds: pl.DataFrame) -> list[int]:
    """Rounds that accepted position i, from the accepted length of each."""
    lengths = rounds["accepted"].to_list()
    return [sum(length > i for length in lengths) for i in range(max(lengths, default=0))]


def test_requests_of_the_log(run: Run) -> None:
    truth, requests = run.truth, run.requests
    sums = (requests.height, *(added(requests, c) for c in ("drafted", "accepted", "output_tokens")))
    assert sums == tuple(truth[c] for c in ("n", "drafted", "accepted", "gen"))
    assert added(requests, "decode_us") / 1000 == pytest.approx(truth["eval_ms"], abs=0.1)
    assert requests["request_id"].is_unique().all()


def test_responses_are_the_same_requests(run: Run) -> None:
    """By the name made of the figures that log and response share: every count, and the times to 10 us."""
    assert run.responses.requests is not None
    both = run.requests.join(run.responses.requests, on="request_id", how="full", suffix="_said")
    assert both.height == run.truth["n"]
    assert both["request_id"].null_count() == both["request_id_said"].null_count() == 0
    for column in ("output_tokens", "prompt_tokens", "cached_tokens"):
        told = both.filter(pl.col(column).is_not_null())
        assert (told[column] == told[f"{column}_said"]).all(), column
    for column in ("drafted", "accepted"):
        # The log's own zeros come from the statistics line behind the block; a response leaves them out.
        assert (both[column].fill_null(0) == both[f"{column}_said"].fill_null(0)).all()
    for column in ("ttft_us", "decode_us"):
        assert ((both[column] - both[f"{column}_said"]).abs() <= 10).all()


def test_round_lines_are_the_rounds_of_the_requests(run: Run) -> None:
    truth, rounds = run.truth, run.log.rounds
    assert (rounds is None) == (truth["trace_rounds"] == 0)
    if rounds is None:
        return
    assert not rounds["is_replay"].any()
    drafting = rounds.filter(pl.col("drafted") > 0)
    assert (drafting.height, added(drafting, "drafted"), added(drafting, "accepted")) == (
        truth["trace_rounds"], truth["trace_drafted"], truth["trace_acc"],
    )  # fmt: skip
    lost = (drafting["drafted"] - drafting["accepted"]).value_counts(name="rounds")
    assert {str(length): n for length, n in lost.rows()} == truth["rollback_hist"]
    sums = drafting.group_by("request_id").agg(
        pl.len().cast(pl.Int64).alias("n"), pl.col("drafted", "accepted").sum().cast(pl.Int64)
    )
    both = run.requests.filter(pl.col("drafted") > 0).join(sums, on="request_id", how="full", suffix="_seen")
    assert (
        both.select("rounds", "drafted", "accepted").rows() == both.select("n", "drafted_seen", "accepted_seen").rows()
    )
    # What a request emitted behind its first token is what its rounds did, and plain steps that no line tells of.
    assert added(rounds, "emitted") <= added(run.requests, "output_tokens") - run.requests.height


def test_histograms_are_those_of_the_round_lines(run: Run) -> None:
    """Of the log's requests, and of streamed responses wherever these can tell their rounds."""
    if run.log.rounds is None:
        return
    drafting = run.log.rounds.filter(pl.col("drafted") > 0)
    seen: dict[str, list[int]] = {}
    for request, accepted in drafting.select("request_id", "accepted").iter_rows():
        seen.setdefault(request, []).append(accepted)
    told = 0
    for tables in (run.log, run.responses):
        assert tables.requests is not None
        for request, hist in tables.requests.select("request_id", "accepted_hist").drop_nulls().iter_rows():
            counted = [seen[request].count(j) for j in range(len(hist))]
            assert (hist, sum(hist)) == (counted, len(seen[request]))
            told += 1
    assert told >= len(seen)


def test_statistics_lines_add_up(run: Run) -> None:
    for drafter, told in run.truth["stats"].items():
        assert run.log.windows is not None
        own = run.log.windows.filter(pl.col("method") == drafter)
        sums = tuple(added(own, c) for c in ("rounds", "drafted", "accepted", "draft_us"))
        spent = round(float(told["dur"][1]) * 1000)
        assert sums == (told["gen_drafts"], told["gen_tok"], told["acc_tok"], spent)


def test_metrics_at_the_end_count_what_the_log_does(run: Run) -> None:
    truth, windows = run.truth, run.metrics["after"].windows
    assert windows is not None
    assert windows.select("rounds", "drafted", "accepted", "generated_tokens").rows() == [
        tuple(int(truth[c]) for c in ("m_rounds", "m_draft", "m_acc", "m_pred"))
    ]
    assert (truth["m_draft"], truth["m_acc"], truth["m_pred"]) == (truth["drafted"], truth["accepted"], truth["gen"])
    if run.log.rounds is not None:
        drafting = run.log.rounds.filter(pl.col("drafted") > 0)
        counted = windows["accepted_per_pos"].to_list()[0]
        lived = survivors(drafting)
        assert (drafting.height, counted) == (truth["m_rounds"], lived + [0] * (len(counted) - len(lived)))
    # Evaluated prompt tokens: cached ones are in neither.
    evaluated = added(run.requests, "prompt_tokens") - added(run.requests, "cached_tokens")
    if run.requests["prompt_tokens"].null_count() == 0:
        assert added(windows, "prompt_tokens") == evaluated
    before = run.metrics["before"].windows
    assert before is None or before.height == 0


def test_scrapes_in_between_grow_to_a_state_of_the_end(run: Run) -> None:
    if "series" not in run.metrics:
        return
    windows, after = run.metrics["series"].windows, run.metrics["after"].windows
    assert windows is not None
    assert after is not None
    assert windows["ts_end"].is_sorted()
    # One of the files was begun by an earlier server of the same name: what counts is from the last start on.
    starts = windows["ts_start"].is_null().arg_true()
    assert len(starts) == (2 if run.truth["dir"] in RESTARTED else 1)
    windows = windows[int(starts[-1]) :]
    columns = ("rounds", "drafted", "accepted", "generated_tokens")
    assert all(added(windows, c) <= added(after, c) for c in columns)
    # Requests are released one by one: the counters of a scrape are those of some first requests.
    done = run.requests.sort("source_line").select(
        pl.col("drafted", "accepted", "output_tokens").fill_null(0).cum_sum()
    )
    seen = windows.select(pl.col("drafted", "accepted", "generated_tokens").cum_sum())
    assert set(seen.rows()) <= {(0, 0, 0), *done.rows()}


def test_slots_are_idle_at_the_end(run: Run) -> None:
    assert run.slots.windows is not None
    assert run.slots.windows["running"].to_list() == [0]


@pytest.mark.parametrize("name", ["smol2-q4-k3", "rep-ngram-simple"])
def test_all_files_of_a_run_count_once(name: str, tmp_path: Path) -> None:
    """Log, responses, metrics and slots of one folder in one lake: the figures are those of one of them."""
    folder = RUNS / name
    truth = json.loads((folder / "truth.json").read_text())
    ingest([str(folder)], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        counted = con.execute("select sum(rounds), sum(drafted), sum(accepted) from facts").fetchone()
        assert counted == (truth["trace_rounds"], truth["drafted"], truth["accepted"])
        joined = con.execute("select count(*), sum(records), sum(conflicts) from requests_joined").fetchone()
        assert joined == (truth["n"], 2 * truth["n"], 0)
        plain = con.execute("select sum(plain_steps) from facts where grain = 'request'").fetchone()
        assert plain == (truth["gen"] - truth["n"] - truth["accepted"] - truth["trace_rounds"],)
