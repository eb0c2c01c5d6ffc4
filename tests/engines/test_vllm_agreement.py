"""One real run through every surface that was kept of it: the same counts where they speak of the same thing.

| surface | speaks of | differs by |
|---|---|---|
| responses, as requests and as rounds | the requests driven | nothing: they are the truth of one request |
| `/metrics`, from the first scrape on | the same | nothing; its first window is the warm-up before it |
| `SpecDecoding metrics` lines | warm-up and drive | what came after the last line is never printed |
| `Iteration(n)` lines | every step since the start | counts nobody accepted |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.resources import room

REAL = room("samples") / "vllm-real"
DATA = Path(__file__).parent.parent / "data" / "vllm"
TRUTH: dict[str, Any] = json.loads((REAL / "truth.json").read_text(encoding="utf-8"))["runs"]
COUNTS = ("rounds", "drafted", "accepted")
SPECULATIVE = [name for name in TRUTH if TRUTH[name]["from_metrics"]["rounds"]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Every run with its log, its responses and its scrapes in one folder."""
    root = tmp_path_factory.mktemp("agreement")
    for name in TRUTH:
        folder = root / "logs" / name
        shutil.copytree(REAL / name, folder)
        shutil.copy(DATA / f"metrics-{name}.prom.gz", folder / "metrics.prom.gz")
    ingest([str(root / "logs")], root / "lake", IngestOptions(tz="UTC", jobs=1))
    with connect(root / "lake", keep=True) as con:
        yield con


def one(lake: Any, sql: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] = lake.execute(sql).fetchone()
    return row


def sums(lake: Any, table: str, run: str, surface: str, condition: str = "true") -> tuple[int, ...]:
    rounds = "count(*)" if table == "rounds" else "sum(rounds)"
    return tuple(
        int(v or 0)
        for v in one(
            lake,
            f"select {rounds}, sum(drafted), sum(accepted) from {table} join sources s using (source_id)"
            f" where surface = '{surface}' and starts_with(s.name, '{run}/') and {condition}",
        )
    )


def truth(run: str) -> tuple[int, ...]:
    return tuple(TRUTH[run]["from_metrics"][c] for c in COUNTS)


@pytest.mark.parametrize("run", SPECULATIVE)
def test_responses_rounds_and_counters_tell_the_same(lake: Any, run: str) -> None:
    driven = "ts_start is not null"  # the counters' first window is what came before the first scrape
    assert sums(lake, "requests", run, "vllm.response", "request_id not like '%warmup%'") == truth(run)
    assert sums(lake, "rounds", run, "vllm.response", "request_id not like '%warmup%'") == truth(run)
    assert sums(lake, "windows", run, "vllm.metrics", driven) == truth(run)


@pytest.mark.parametrize("run", SPECULATIVE)
def test_the_printed_lines_lack_only_what_came_after_the_last(lake: Any, run: str) -> None:
    printed = sums(lake, "windows", run, "vllm.v1_line")
    counted = sums(lake, "windows", run, "vllm.metrics")
    tail = [c - p for c, p in zip(counted, printed, strict=True)]
    assert printed[1:] == (TRUTH[run]["from_log"]["sum_drafted"], TRUTH[run]["from_log"]["sum_accepted"])
    assert all(lost >= 0 for lost in tail)
    assert tail[2] <= tail[1] == tail[0] * (tail[1] // max(tail[0], 1))
    assert tail[1] <= counted[1] / 5


@pytest.mark.parametrize("run", list(TRUTH))
def test_steps_and_tokens(lake: Any, run: str) -> None:
    steps, generated = one(
        lake,
        f"select sum(steps), sum(generated_tokens) from windows join sources s using (source_id)"
        f" where surface = 'vllm.metrics' and ts_start is not null and starts_with(s.name, '{run}/')",
    )
    told = TRUTH[run]["from_metrics"]
    assert (steps, generated) == (told["steps"], told["output_tokens"])
    (tokens,) = one(
        lake,
        f"select sum(output_tokens) from requests join sources s using (source_id)"
        f" where surface = 'vllm.response' and request_id not like '%warmup%' and starts_with(s.name, '{run}/')",
    )
    assert tokens == generated


@pytest.mark.parametrize("run", SPECULATIVE)
def test_all_of_it_together_counts_once(lake: Any, run: str) -> None:
    ids = one(
        lake,
        f"select list_sort(list(distinct run_id)) from requests join sources s using (source_id)"
        f" where starts_with(s.name, '{run}/')",
    )[0]
    assert len(ids) == 1
    counted = one(lake, f"select sum(rounds), sum(drafted), sum(accepted) from facts where run_id = '{ids[0]}'")
    assert counted == sums(lake, "requests", run, "vllm.response")
    conflicts = one(lake, f"select count(*) from requests_joined where conflicts > 0 and run_id = '{ids[0]}'")
    assert conflicts == (0,)
