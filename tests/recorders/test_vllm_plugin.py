"""The vLLM plug-in against stubs of three generations: exact counts, joined times, and no fault that reaches vLLM."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recorders import vllm_stubs as stubs
from tracelens.recorders.settings import Settings
from tracelens.recorders.vllm import core, hooks, rounds, worker

GENERATIONS = ["old", "v1", "v2"]


@pytest.fixture
def modules(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from stubs.installed(request.param, monkeypatch)


def written(engine: stubs.Engine, folder: Path) -> list[dict[str, Any]]:
    engine.scheduler._tracelens.writer.close()
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["record"] == kind]


def serve(engine: stubs.Engine, requests: int = 4, length: int = 8) -> None:
    """Requests that come one step after another, and are served to their end."""
    for i in range(requests):
        engine.scheduler.add_request(stubs.request(i, tokens=length + 3 * i, temperature=i / 10))
        engine.step()
    for _ in range(60):
        engine.step()
    assert not engine.scheduler.requests


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_counts_are_the_schedulers_own(modules: Any, folder: Path, in_flight: int) -> None:
    engine = stubs.engine(modules, "cpu", in_flight)
    if in_flight == 2:  # asynchronous: the scheduler is a step ahead of the counts, and drops what a finished one got
        engine.scheduler.invalid = {"cmpl-1-0-0123abcd": 1}
    serve(engine)
    lines = written(engine, folder)
    rounds, told = of(lines, "round"), engine.scheduler.stats
    assert told.drafted > 40
    assert sum(r["drafted"] for r in rounds) == told.drafted
    assert sum(r["accepted"] for r in rounds) == told.accepted
    assert sum(r["drafted"] > 0 for r in rounds) == told.drafts
    requests = {r["request_id"]: r for r in of(lines, "request")}
    assert len(requests) == 4
    for i in range(4):
        name = f"cmpl-{i}-0-0123abcd"
        mine = [r for r in rounds if r["request_id"] == name]
        record = requests[name]
        assert record["output_tokens"] == 8 + 3 * i == 1 + sum(r["emitted"] for r in mine)
        assert record["accepted"] == sum(r["accepted"] for r in mine)
        assert sum(record["accepted_hist"]) == record["rounds"] == sum(r["drafted"] > 0 for r in mine)
        assert [r["round_index"] for r in mine] == list(range(len(mine)))
        assert {r["temperature"] for r in mine} == {i / 10}
        assert mine[0]["context_len"] == 10 + i + 1


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_device_times_are_joined_by_step(modules: Any, folder: Path, in_flight: int) -> None:
    engine = stubs.engine(modules, "cuda", in_flight, is_async=True)
    serve(engine, length=40)
    rounds = of(written(engine, folder), "round")
    timed = [r for r in rounds if "target_us" in r]
    # The last steps of a burst have no later reply that could bring their times.
    assert len(timed) >= len(rounds) - 8
    assert {r["target_us"] for r in timed} == {20_000}
    assert {r["sample_us"] for r in timed} == {2_000}
    assert {r["timing_basis"] for r in timed} == {"device"}
    drafts = [r for r in rounds if "draft_us" in r]
    assert {r["draft_us"] for r in drafts} == {6_000}
    assert len(drafts) > len(rounds) / 2


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_a_round_has_the_draft_of_the_step_that_proposed_it(
    modules: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stubs.engine(modules, "cuda")
    engine.scheduler.add_request(stubs.request(0, tokens=30))
    for step in range(12):
        monkeypatch.setattr(stubs, "DRAFT_MS", 1.0 + step)
        engine.step()
    rounds = of(written(engine, folder), "round")
    # Step 0 is prefill: its draft phase ran behind the whole prompt and is no round's.
    assert "draft_us" not in rounds[0]
    assert [r["draft_us"] for r in rounds[1:9]] == [1000 * (1 + step) for step in range(1, 9)]


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
def test_host_times_on_a_cpu(modules: Any, folder: Path) -> None:
    engine = stubs.engine(modules, "cpu")
    serve(engine)
    rounds = of(written(engine, folder), "round")
    assert {r["timing_basis"] for r in rounds} == {"host"}
    assert all("target_us" in r and "sample_us" in r for r in rounds)
    assert all(r["target_us"] + r["sample_us"] <= r["step_us"] for r in rounds)


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_steps_with_prefill_are_told_and_the_first_token_is_no_round(modules: Any, folder: Path) -> None:
    engine = stubs.engine(modules, "cpu")
    serve(engine, 3)
    rounds = of(written(engine, folder), "round")
    prefills = [
        (r["step_id"].rpartition("-")[2], r["batch_size"], r["step_share"]) for r in rounds if "has_prefill" in r
    ]
    assert prefills == [("1", 2, 1.0), ("2", 3, 0.5), ("2", 3, 0.5)]


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_an_aborted_request_is_written_and_forgotten(modules: Any, folder: Path) -> None:
    engine = stubs.engine(modules, "cpu")
    for i in range(2):
        engine.scheduler.add_request(stubs.request(i, tokens=40))
    engine.step()
    engine.step()
    scheduled = engine.scheduler.schedule()
    reply = stubs.run_on(engine.runners[0], scheduled)
    engine.scheduler.finish_requests("cmpl-1-0-0123abcd")  # while the model runs
    engine.scheduler.update_from_output(scheduled, reply)
    engine.step()
    assert list(engine.scheduler._tracelens.states) == ["cmpl-0-0-0123abcd"]
    lines = written(engine, folder)
    assert [r["finish_reason"] for r in of(lines, "request")] == ["abort"]
    assert sum(r["drafted"] for r in of(lines, "round")) == engine.scheduler.stats.drafted


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_the_run_is_told_without_folders(modules: Any, folder: Path) -> None:
    engine = stubs.engine(modules, "cpu")
    serve(engine, 1)
    lines = written(engine, folder)
    (run,) = of(lines, "run")
    assert (run["run_id"], run["engine"], run["method"], run["model"]) == ("run-1", "vllm", "draft_model", "target")
    assert (run["draft_model"], run["num_speculative_tokens"], run["tensor_parallel"]) == ("draft", 3, 2)
    assert "/srv" not in json.dumps(lines)


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_the_task_is_taken_from_the_id(modules: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_RECORD_TASK", r"^cmpl-([0-9])")
    monkeypatch.setenv("TRACELENS_RECORD_SAMPLE", "0.5")
    engine = stubs.engine(modules, "cpu")
    serve(engine)
    lines = written(engine, folder)
    assert {r["task_type"] for r in of(lines, "request")} == {"0", "1", "2", "3"}
    assert {r["weight"] for r in of(lines, "round")} == {2.0}
    # Requests are counted whole, whatever is sampled.
    assert sum(r["accepted"] for r in of(lines, "request")) == engine.scheduler.stats.accepted


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
@pytest.mark.parametrize("place", ["timer_of", "_ended", "before", "after", "book_of", "_number"])
def test_a_fault_of_ours_never_reaches_vllm(
    modules: Any, folder: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(worker if hasattr(worker, place) else core, place, fails)
    engine = stubs.engine(modules, "cpu")
    with caplog.at_level(logging.WARNING, logger="vllm.tracelens"):
        serve(engine)
    assert engine.scheduler.stats.drafts > 10
    assert "serving goes on" in caplog.text
    assert len(caplog.records) <= 6  # told once a place


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
def test_a_fault_of_vllm_is_vllms(modules: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stubs.engine(modules, "cpu")
    engine.scheduler.add_request(stubs.request(0))
    monkeypatch.setattr(stubs, "_output", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.step()


@pytest.mark.parametrize(
    ("generation", "missing", "empty"),
    [
        ("old", "propose_draft_token_ids", {"draft_us"}),
        ("old", "_prepare_inputs", {"target_us"}),
        ("old", "_sample", {"sample_us", "target_us"}),
        ("v1", "propose_draft_token_ids", {"draft_us"}),
        ("v1", "_sample", {"sample_us"}),
        ("v1", "_prepare_inputs", set()),
        ("v1", "_model_forward", set()),  # between _prepare_inputs and _sample
        ("v2", "sample", {"sample_us"}),
        ("v2", "prepare_inputs", {"target_us"}),
    ],
)
def test_a_version_without_a_method_is_recorded_as_far_as_it_goes(
    generation: str, missing: str, empty: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for modules in stubs.installed(generation, monkeypatch, missing):
        engine = stubs.engine(modules, "cuda", is_async=True)
        serve(engine)
        rounds = of(written(engine, folder), "round")
        assert sum(r["accepted"] for r in rounds) == engine.scheduler.stats.accepted
        seen = {name for name in ("draft_us", "target_us", "sample_us") if any(name in r for r in rounds)}
        assert seen == {"draft_us", "target_us", "sample_us"} - empty
        assert {r["target_us"] for r in rounds if "target_us" in r} <= {20_000}


def test_a_speculator_that_is_gone_costs_the_draft_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for modules in stubs.installed("v2", monkeypatch):
        engine = stubs.engine(modules, "cuda")
        for runner in engine.runners:
            work = runner.speculator.propose
            runner.speculator = type("Frozen", (), {"__slots__": (), "propose": staticmethod(work)})()
        serve(engine)
        rounds = of(written(engine, folder), "round")
        assert sum(r["accepted"] for r in rounds) == engine.scheduler.stats.accepted
        assert any("target_us" in r for r in rounds)
        assert not any("draft_us" in r for r in rounds)


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_a_stage_of_a_pipeline_has_no_target_time(modules: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs.CONFIG.parallel_config, "pipeline_parallel_size", 2)
    engine = stubs.engine(modules, "cuda")
    serve(engine)
    rounds = of(written(engine, folder), "round")
    assert not any("target_us" in r for r in rounds)
    assert any("draft_us" in r for r in rounds)


def test_events_that_fail_cost_their_own_step_only() -> None:
    class Phases:
        def __init__(self, fails: str) -> None:
            self.fails = fails

        def are_ready(self) -> bool:
            return self.fails != "query" or bool(1 / 0)

        def durations(self) -> dict[str, int]:
            return {"target": 1 // (self.fails != "elapsed_time")}

    timer = worker.StepTimer(type("Runner", (), {"device": type("Device", (), {"type": "cpu"})})())
    for number, fails in enumerate(("elapsed_time", "", "query", "")):
        timer.phases, timer.number = Phases(fails), number  # type: ignore[assignment]
        if fails:
            with pytest.raises(ZeroDivisionError):
                timer.end()
        else:
            timer.end()
    assert not timer.waiting
    assert timer.sent() == ("host", [(1, {"target": 1}), (3, {"target": 1})])


def test_a_step_that_cannot_be_made_takes_no_other_along(folder: Path) -> None:
    book = rounds.StepBook(Settings(folder, flush_s=30), {}, "0")
    for number in range(3):
        step = book.step(number, 0, 1000, rounds.Seen([], False), 1)
        step.rows = [('"request_id":"a"', number, 1, 1, 1, 1, -1)] if number != 1 else [(1,)]  # type: ignore[list-item]
        book.ended(step)
    book.writer.close()
    (path,) = folder.glob("*.jsonl")
    assert [json.loads(line).get("round_index") for line in path.read_text().splitlines()] == [None, 0, 2, None]
    assert book.writer.files.lost == 1


def test_dropped_are_steps_not_what_travels_with_them(folder: Path) -> None:
    book = rounds.StepBook(Settings(folder, flush_s=30, queue=4), {}, "0")
    for number in range(10):
        book.timed(("host", [(number, {"target": 1})]))
        step = book.step(number, 0, 1000, rounds.Seen([], False), 1)
        step.rows = [('"request_id":"a"', number, 1, 1, 1, 1, -1)]
        book.ended(step)
    assert book.writer.dropped == 8
    book.writer.close()


def test_the_book_of_an_engine_that_is_dropped_is_written(folder: Path) -> None:
    book = rounds.StepBook(Settings(folder, flush_s=30), {}, "0")
    step = book.step(0, 0, 1000, rounds.Seen([], False), 1)
    step.rows = [('"request_id":"a"', 0, 1, 1, 1, 1, -1)]
    book.ended(step)
    files = book.writer.files
    del book, step
    gc.collect()
    (path,) = folder.glob("*.jsonl")
    assert len(path.read_text().splitlines()) == 2
    assert files._fd is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_forgets_what_its_parent_waits_for(folder: Path) -> None:
    book = rounds.StepBook(Settings(folder, flush_s=30), {}, "0")
    step = book.step(0, 0, 1000, rounds.Seen([], False), 1)
    step.rows = [('"request_id":"a"', 0, 1, 1, 1, 1, -1)]
    book.ended(step)
    book.writer.flush()  # it waits for its times now
    child = os.fork()
    if not child:
        book.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert list(folder.glob("*.jsonl")) == []
    book.close()
    assert len(list(folder.glob("*.jsonl"))) == 1


@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_an_unknown_device_costs_the_times_only(modules: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = stubs.engine(modules, "quantum")
    with caplog.at_level(logging.WARNING, logger="vllm.tracelens"):
        serve(engine)
    rounds = of(written(engine, folder), "round")
    assert sum(r["accepted"] for r in rounds) == engine.scheduler.stats.accepted
    assert not any("target_us" in r for r in rounds)
    assert "quantum" in caplog.text


@pytest.mark.parametrize("modules", GENERATIONS, indirect=True)
def test_a_path_that_cannot_be_written_keeps_nobody_from_serving(
    modules: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("in the way")
    engine = stubs.engine(modules, "cpu")
    with caplog.at_level(logging.WARNING):
        serve(engine)
        engine.scheduler._tracelens.writer.close()
    assert "cannot be written" in caplog.text
    assert engine.scheduler.stats.drafts > 10


def test_a_module_that_is_imported_later_is_hooked_then(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_later.py").write_text("class Runner: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    met: list[str] = []
    monkeypatch.setattr(hooks, "HOOKS", {"hooked_later": lambda module: met.append(module.Runner.__name__)})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    hooks.install()
    hooks.install()
    assert met == []
    assert importlib.util.find_spec("hooked_later") is not None  # asked for, and not imported
    assert met == []
    __import__("hooked_later")
    assert met == ["Runner"]
    sys.modules.pop("hooked_later")


def test_an_empty_name_of_the_run_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_RECORD_RUN", "")
    monkeypatch.setattr(hooks, "HOOKS", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    hooks.install()
    assert os.environ["TRACELENS_RECORD_RUN"].startswith("vllm-")


def _serve_in_child(modules: Any) -> None:
    serve(stubs.engine(modules, "cpu"))  # nobody closes: it is written when the process ends


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("modules", ["v1"], indirect=True)
def test_an_engine_core_that_was_forked_off_writes_a_file_of_its_own(modules: Any, folder: Path) -> None:
    engine = stubs.engine(modules, "cpu")
    serve(engine)
    child = multiprocessing.get_context("fork").Process(target=_serve_in_child, args=(modules,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    lines = written(engine, folder)
    assert len(list(folder.glob("*.jsonl"))) == 2
    assert {line["run_id"] for line in of(lines, "run")} == {"run-1"}
    assert sum(r["accepted"] for r in of(lines, "round")) == 2 * engine.scheduler.stats.accepted
    steps = {r["step_id"].rpartition("-")[0] for r in of(lines, "round")}
    assert len(steps) == 2


def test_records_come_through_ingest(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest
    from tracelens.lake.connection import connect

    for modules in stubs.installed("v1", monkeypatch):
        engine = stubs.engine(modules, "cuda", is_async=True)
        serve(engine)
        written(engine, folder)
        lake = tmp_path / "lake"
        assert ingest([str(folder)], lake, IngestOptions(jobs=1)).rejects == 0
        told = engine.scheduler.stats
        with connect(lake, keep=True) as db:
            assert db.execute("select count(*) from rejects").fetchone() == (0,)
            facts = "select sum(rounds), sum(drafted), sum(accepted), min(run_id), min(model) from facts"
            assert db.execute(facts).fetchone() == (told.drafts, told.drafted, told.accepted, "run-1", "target")
            share = "select min(s), max(s) from (select sum(step_share) as s from rounds group by step_id)"
            low, high = db.execute(share).fetchone() or (0, 0)
            assert low == pytest.approx(1)
            assert high == pytest.approx(1)
