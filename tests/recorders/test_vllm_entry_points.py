"""The entry points: the stat logger of three generations, and nothing at all where nobody asked."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.recorders import vllm_stubs as stubs
from tracelens.recorders.vllm import stats


def scheduler_stats(**spec: Any) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.25, spec_decoding_stats=SimpleNamespace(**spec)
    )


@pytest.mark.parametrize(
    ("spec", "iteration", "call"),
    [
        # 0.8.3: two counts, gpu_cache_usage; 0.10: no engine_idx; 0.32: all of it.
        ({"num_draft_tokens": 6, "num_accepted_tokens": 2}, {"time_per_output_tokens_iter": [0.01, 0.02]}, {}),
        (
            {"num_spec_tokens": 3, "num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 2,
             "num_accepted_tokens_per_pos": [1, 1, 0]},
            {"inter_token_latencies_iter": [0.01, 0.02], "num_generation_tokens": 4},
            {"engine_idx": 1},
        ),
        (
            {"num_spec_tokens": 3, "num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 2,
             "num_accepted_tokens_per_pos": [1, 1, 0], "num_draft_tokens_per_pos": [2, 2, 2]},
            {"inter_token_latencies_iter": [0.01, 0.02], "prompt_token_stats": SimpleNamespace(total=9)},
            {"mm_cache_stats": None, "engine_idx": 1},
        ),
    ],
)  # fmt: skip
def test_the_stat_logger_of_three_generations(spec: Any, iteration: Any, call: Any, folder: Path) -> None:
    logger = stats.StatLogger(stubs.CONFIG, 0)
    logger.record(scheduler_stats(**spec), SimpleNamespace(**iteration), **call)
    logger.record(None, None)  # idle
    logger.record(object(), SimpleNamespace(inter_token_latencies_iter=["broken"]))  # told once, and left out
    logger.log()
    logger.log_engine_initialized()
    logger.record_sleep_state(1)
    logger._recorder.close()
    (path,) = folder.glob("*.jsonl")
    _, window = (json.loads(line) for line in path.read_text().splitlines())
    assert (window["drafted"], window["accepted"], window["steps"]) == (6, 2, 1)
    assert (window["round_us"], window["rounds_timed"], window["running"]) == (30_000, 2, 3)
    assert window["replica"] == str(call.get("engine_idx", 0))
    assert window.get("accepted_per_pos") == spec.get("num_accepted_tokens_per_pos")


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACELENS_RECORD", raising=False)
    logger = stats.StatLogger(stubs.CONFIG, 0)
    logger.record(scheduler_stats(num_drafts=1), SimpleNamespace())
    assert logger._recorder is None
    code = """
        import sys
        before = list(sys.meta_path)
        from tracelens.recorders.vllm import register
        register()
        heavy = {"polars", "duckdb", "pyarrow", "numpy", "torch", "vllm", "msgspec"} & set(sys.modules)
        ours = sorted(m for m in sys.modules if m.startswith("tracelens"))
        assert not heavy, heavy
        assert ours == ["tracelens", "tracelens.recorders", "tracelens.recorders.vllm"], ours
        assert sys.meta_path == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_with_the_variable_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = """
        import os, sys
        os.environ["TRACELENS_RECORD"] = sys.argv[1]
        from tracelens.recorders.vllm import register
        register()
        from tracelens.recorders.vllm import hooks, stats
        assert any(type(finder).__name__ == "_AfterImport" for finder in sys.meta_path)
        heavy = {"polars", "duckdb", "pyarrow", "numpy", "torch", "vllm", "msgspec"} & set(sys.modules)
        assert not heavy, heavy
        assert os.environ["TRACELENS_RECORD_RUN"].startswith("vllm-")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_entry_points_name_what_is_there() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    loaded = {
        group: importlib.metadata.EntryPoint("tracelens", project[group]["tracelens"], group).load()
        for group in ("vllm.general_plugins", "vllm.stat_logger_plugins")
    }
    assert loaded["vllm.general_plugins"].__name__ == "register"
    assert loaded["vllm.stat_logger_plugins"] is stats.StatLogger
