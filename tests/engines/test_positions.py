"""Counters by position: as many as engines draft are read in proportion, more are refused with one reject."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from whole_source import ingest_file

from tracelens.engines.base import Tables
from tracelens.engines.units import MOST_POSITIONS

# Prefix, labels, and the counters of rounds, drafted, accepted and accepted by position.
ENGINES = {
    "vllm": ("vllm:spec_decode_", 'engine="0",model_name="m",'),
    "llama.cpp": ("llamacpp:spec_decode_", 'model="m",'),
    "lmdeploy": ("lmdeploy:spec_decode_", 'engine="0",model_name="m",'),
}


def pages(engine: str, positions: int) -> str:
    prefix, labels = ENGINES[engine]
    lines = []
    for n in (1, 2):
        lines.append(f"# TRACELENS-SCRAPE unix={1_795_953_254 + 10 * n}.0")
        sums = {"num_drafts": 100 * n, "num_draft_tokens": 100 * positions * n, "num_accepted_tokens": positions * n}
        lines += [f"{prefix}{name}_total{{{labels}}} {value}" for name, value in sums.items()]
        name = f"{prefix}num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{{labels}position="{i}"}} {n}' for i in range(positions)]
    return "\n".join(lines) + "\n"


def read(folder: Path, engine: str, positions: int) -> tuple[Tables, list[str], float]:
    path = folder / "x.prom"
    path.write_text(pages(engine, positions), encoding="utf-8")
    begun = time.perf_counter()
    tables, rejects = ingest_file(path, engine)
    return tables, [r.reason for r in rejects], time.perf_counter() - begun


@pytest.mark.parametrize("engine", ENGINES)
def test_as_many_positions_as_engines_draft(engine: str, tmp_path: Path) -> None:
    tables, rejects, _ = read(tmp_path, engine, MOST_POSITIONS)
    assert rejects == []
    assert tables.windows is not None
    assert tables.windows["accepted_per_pos"].to_list()[-1] == [1] * MOST_POSITIONS


@pytest.mark.parametrize("engine", ENGINES)
def test_more_positions_are_refused_once(engine: str, tmp_path: Path) -> None:
    tables, rejects, _ = read(tmp_path, engine, 4000)
    assert len(rejects) == 1
    assert str(MOST_POSITIONS) in rejects[0]
    assert tables.windows is not None
    assert tables.windows["accepted"].to_list()[-1] == 4000
    assert tables.windows["accepted_per_pos"].null_count() == tables.windows.height


@pytest.mark.parametrize("engine", ENGINES)
def test_time_grows_with_the_positions_and_no_faster(engine: str, tmp_path: Path) -> None:
    read(tmp_path, engine, 4)
    few = min(read(tmp_path, engine, MOST_POSITIONS // 4)[2] for _ in range(2))
    many = min(read(tmp_path, engine, MOST_POSITIONS)[2] for _ in range(2))
    assert many < 8 * few + 0.2  # 4 in proportion, 16 where an expression of all stands in that of each
