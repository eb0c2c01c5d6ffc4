"""Real runs of vLLM 0.32 (samples/vllm-real) and generated sites, against their truth."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.resources import room

REAL = room("samples") / "vllm-real"
RUNS: dict[str, Any] = json.loads((REAL / "truth.json").read_text(encoding="utf-8"))["runs"]
SITE = room("samples") / "vllm-site"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """All real runs in one lake: logs and responses of a run in one folder, as on a server."""
    path = tmp_path_factory.mktemp("real") / "lake"
    ingest([str(REAL)], path, IngestOptions(tz="UTC", jobs=1))
    with connect(path, keep=True) as con:
        yield con


def rows(lake: Any, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = lake.execute(sql).fetchall()
    return found


def run_of(lake: Any, name: str) -> str:
    """The run that the responses of a folder belong to, which is its server log's."""
    found = rows(
        lake,
        "select s.name, any_value(r.run_id), count(distinct r.run_id) from requests r join sources s using (source_id) "
        "group by s.name order by s.name",
    )
    ids = {run for source, run, _ in found if source.startswith(f"{name}/")}
    assert len(ids) == 1, found
    return str(ids.pop())


@pytest.mark.parametrize("name", RUNS)
def test_the_log_gives_its_own_sums(lake: Any, name: str) -> None:
    truth, run = RUNS[name]["from_log"], run_of(lake, name)
    got = rows(
        lake,
        f"""select count(*) filter (surface = 'vllm.v1_line'), coalesce(sum(accepted), 0), coalesce(sum(drafted), 0),
        count(*) filter (surface = 'vllm.iteration_line') from windows where run_id = '{run}'""",
    )
    expected = [truth[k] for k in ("interval_lines", "sum_accepted", "sum_drafted", "iteration_lines")]
    assert list(got[0]) == expected


@pytest.mark.parametrize("name", RUNS)
def test_every_interval_s_rounds_are_recovered(lake: Any, name: str) -> None:
    """The drafter always drafts K tokens: rounds * K is what was drafted, and the positions add up."""
    got = rows(
        lake,
        f"""select rounds * num_speculative_tokens = drafted, list_sum(accepted_per_pos) = accepted, rounds_basis
        from windows where surface = 'vllm.v1_line' and run_id = '{run_of(lake, name)}'""",
    )
    assert len(got) == RUNS[name]["from_log"]["interval_lines"]
    assert {r[:2] for r in got} <= {(True, True)}
    assert {r[2] for r in got} <= {"exact", "derived"}


@pytest.mark.parametrize("name", RUNS)
def test_the_responses_give_the_engine_s_own_counters(lake: Any, name: str) -> None:
    truth, run = RUNS[name]["from_metrics"], run_of(lake, name)
    got = rows(
        lake,
        f"""select coalesce(sum(rounds), 0), coalesce(sum(drafted), 0), coalesce(sum(accepted), 0), sum(output_tokens)
        from requests where surface = 'vllm.response' and run_id = '{run}'""",
    )
    assert list(got[0]) == [truth[k] for k in ("rounds", "drafted", "accepted", "output_tokens")]
    by_round = rows(
        lake,
        f"select accepted, count(*), sum(drafted) from rounds where run_id = '{run}' group by accepted",
    )
    assert sum(n for _, n, _ in by_round) == truth["rounds"]
    assert sum(d for _, _, d in by_round) == truth["drafted"]
    depth = len(truth["accepted_per_pos"])
    assert [sum(n for a, n, _ in by_round if a > i) for i in range(depth)] == truth["accepted_per_pos"]


@pytest.mark.parametrize("name", RUNS)
def test_the_responses_give_every_stratum(lake: Any, name: str) -> None:
    run = run_of(lake, name)
    got = rows(
        lake,
        f"""select task_type || '|' || printf('%.1f', temperature), count(*), coalesce(sum(drafted), 0),
        coalesce(sum(accepted), 0), coalesce(sum(rounds), 0)
        from requests where surface = 'vllm.response' and run_id = '{run}' group by 1""",
    )
    keys = ("n", "draft_tokens", "accepted", "drafts")
    expected = {s: tuple(v[k] for k in keys) for s, v in RUNS[name]["by_task_and_temperature"].items()}
    assert {r[0]: tuple(r[1:]) for r in got} == expected


@pytest.mark.parametrize("name", RUNS)
def test_facts_count_once_what_log_and_responses_both_tell(lake: Any, name: str) -> None:
    truth, run = RUNS[name]["from_metrics"], run_of(lake, name)
    got = rows(
        lake,
        f"""select coalesce(sum(rounds), 0), coalesce(sum(drafted), 0), coalesce(sum(accepted), 0), sum(output_tokens)
        from facts where run_id = '{run}'""",
    )
    assert list(got[0]) == [truth[k] for k in ("rounds", "drafted", "accepted", "output_tokens")]


def test_the_runs_are_what_was_started(lake: Any) -> None:
    got = rows(lake, "select engine_version, method, draft_model, num_speculative_tokens, role, max_num_seqs from runs")
    told = Counter(r for r in got if r[0])
    assert told == {
        ("0.32.0", "draft_model", "models/draft-trunc2", 1, "speculative", 16): 1,
        ("0.32.0", "draft_model", "models/draft-trunc2", 3, "speculative", 16): 1,
        ("0.32.0", "draft_model", "models/draft-trunc2", 7, "speculative", 16): 1,
        ("0.32.0", None, None, None, "baseline", 16): 1,
    }
    assert rows(lake, "select count(*) from rejects") == [(0,)]


def test_request_lines_give_the_temperatures(lake: Any) -> None:
    """The id carries the temperature that the client asked for."""
    got = rows(lake, "select request_id, temperature from requests where surface = 'vllm.request_line'")
    with_id = [(i, t) for i, t in got if "-t" in i]
    assert len(with_id) >= sum(r["responses"]["n"] for r in RUNS.values())
    assert {(float(i.split("-t")[1][:3]), t) for i, t in with_id} == {(0.0, 0.0), (0.7, 0.7), (1.0, 1.0)}


@pytest.mark.parametrize("run", ["k1", "k5", "k7"])
def test_generated_intervals_are_recovered_to_the_last_count(tmp_path: Path, run: str) -> None:
    truth = json.loads((SITE / run / "truth.json").read_text(encoding="utf-8"))["log"]
    ingest([str(SITE / run / "server.log")], tmp_path / "lake", IngestOptions(year=2026, jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        got = con.execute(
            "select strftime(ts_end, '%Y-%m-%dT%H:%M:%SZ'), drafted, accepted, rounds, accepted_per_pos, rounds_basis "
            "from windows where surface = 'vllm.v1_line' order by source_line"
        ).fetchall()
    printed = truth["printed"]
    assert len(got) == truth["interval_lines"]
    assert [r[:4] for r in got] == list(
        zip(*(printed[k] for k in ("ts", "drafted", "accepted", "drafts")), strict=True)
    )
    exact = [i for i, row in enumerate(got) if row[5] == "exact"]
    assert [got[i][4] for i in exact] == [printed["accepted_per_pos"][i] for i in exact]
    assert {row[5] for row in got} <= {"exact", "derived"}


def test_wrapped_and_compressed_is_the_same(tmp_path: Path) -> None:
    """The same log through docker's JSON: equal rows, but for the better stamps."""
    name = "B-trunc2-k3-fix"
    lines = gzip.decompress((REAL / name / "server.log.gz").read_bytes()).decode().splitlines()
    wrapped = tmp_path / "docker.json.log.gz"
    objects = [{"log": line + "\n", "stream": "stdout", "time": f"2026-11-29T12:{i // 60 % 60:02d}:{i % 60:02d}Z"}
               for i, line in enumerate(lines)]  # fmt: skip
    wrapped.write_bytes(gzip.compress("\n".join(map(json.dumps, objects)).encode()))
    ingest([str(wrapped)], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        got = con.execute(
            "select count(*) filter (surface = 'vllm.v1_line'), sum(accepted), sum(drafted), "
            "count(*) filter (surface = 'vllm.iteration_line'), bool_and(ts_basis = 'absolute') from windows"
        ).fetchall()
    truth = RUNS[name]["from_log"]
    assert got == [
        (truth["interval_lines"], truth["sum_accepted"], truth["sum_drafted"], truth["iteration_lines"], True)
    ]
