"""All samples of a seed: which runs there are, when they began, and their truth."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from . import canonical_writer, hostile, rtp_writer, vllm_writer
from .files import utc, write_json, write_lines, write_text
from .parameters import OTHER_SITE, RTP_SITE, SWEEP_KS, TASKS, VLLM_SITE, Site
from .simulator import Simulation, simulate
from .truth import planted_parameters, planted_values, realised

GENERATED = ("vllm-site", "rtp-site", "canonical", "hostile")
MAIN_REQUESTS, BASELINE_REQUESTS, SWEEP_REQUESTS = 308, 140, 140
CANONICAL_REQUESTS, CANONICAL_BASELINE, CANONICAL_LENGTH = 40, 12, 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """One serving process of a site."""

    name: str
    k: int
    requests: int
    start: datetime


VLLM_RUNS = (
    Run("baseline", 0, BASELINE_REQUESTS, utc(2026, 11, 18, 10)),
    Run("k5", 5, MAIN_REQUESTS, utc(2026, 11, 19, 10)),
    *(Run(f"k{k}", k, SWEEP_REQUESTS, utc(2026, 11, 20, 9 + i)) for i, k in enumerate(k for k in SWEEP_KS if k != 5)),
)
RTP_RUNS = (
    Run("baseline", 0, BASELINE_REQUESTS, utc(2026, 1, 19, 10)),
    Run("k5", 5, MAIN_REQUESTS, utc(2026, 1, 20, 10)),
    *(Run(f"k{k}", k, SWEEP_REQUESTS, utc(2026, 1, 21, 9 + i)) for i, k in enumerate(k for k in SWEEP_KS if k != 5)),
)


@cache
def simulation(site: Site, run: Run, seed: int, scale: float = 1.0) -> Simulation:
    """The simulation behind a run of a site; only the main run has the runaway."""
    return simulate(seed, run.k, round(run.requests * scale), site=site, runaway=run.name == "k5")


def build(out: Path, seed: int, scale: float = 1.0) -> None:
    """Write every generated sample below `out`."""
    for run in VLLM_RUNS:
        _vllm(out / "vllm-site" / run.name, run, seed, scale)
    _vllm_labels(out / "vllm-site", seed, scale)
    for run in RTP_RUNS:
        _rtp(out / "rtp-site" / run.name, run, seed, scale)
    _canonical(out / "canonical", seed, scale)
    hostile.write(out / "hostile", seed)
    write_json(out / "MANIFEST.json", manifest(out, seed, scale))


def manifest(out: Path, seed: int, scale: float) -> dict[str, Any]:
    """Size and SHA-256 of every generated file, and the zlib that packed the .gz ones."""
    files: dict[str, Any] = {}
    for folder in GENERATED:
        for path in sorted((out / folder).rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                files[path.relative_to(out).as_posix()] = {"bytes": len(data), "sha256": digest}
    return {"seed": seed, "scale": scale, "zlib": zlib.ZLIB_RUNTIME_VERSION, "files": files}


def _truth(sim: Simulation, baseline: Simulation, seed: int, planted: dict[str, Any]) -> dict[str, Any]:
    return {
        "synthetic": True,
        "seed": seed,
        "k": sim.k,
        "planted": {"parameters": planted_parameters(sim.site), "population": planted},
        "realised": realised(sim, baseline if sim.k else None),
    }


def _vllm(folder: Path, run: Run, seed: int, scale: float) -> None:
    sim = simulation(VLLM_SITE, run, seed, scale)
    every = 10 if run.name in ("k5", "baseline") else 2
    intervals = vllm_writer.write_run(sim, folder, run.start, interval=every, log_requests=every == 10)
    base = simulation(VLLM_SITE, VLLM_RUNS[0], seed, scale)
    truth = _truth(sim, base, seed, planted_values(run.k, VLLM_SITE))
    truth["log"] = {"interval_s": every, **vllm_writer.interval_truth(intervals)}
    write_json(folder / "truth.json", truth)


def _vllm_labels(folder: Path, seed: int, scale: float) -> None:
    """Labels for every seventh request of the main run, and the rules that read the rest off the ids."""
    sim = simulation(VLLM_SITE, VLLM_RUNS[1], seed, scale)
    lines = ["request_id,task_type,tenant"]
    for i in range(0, len(sim.requests), 7):
        task = sim.tasks[int(sim.requests.task[i])].name
        lines.append(f"{vllm_writer.request_id(sim, i)},{task},tenant-{'abc'[i % 3]}")
    write_lines(folder / "labels.csv", lines)
    rules = "".join(
        f"""
[[task]]
type = "{task.name}"
request_id = '^(?:chatcmpl-)?{task.code}\\.'
"""
        for task in TASKS
    )
    head = "# Task types from what the gateway sent as X-Request-Id: <code>.<hex>. First rule that matches wins.\n"
    write_text(folder / "tracelens.toml", head + rules)


def _rtp(folder: Path, run: Run, seed: int, scale: float) -> None:
    sim = simulation(RTP_SITE, run, seed, scale)
    counts = rtp_writer.write_run(sim, folder, run.start)
    base = simulation(RTP_SITE, RTP_RUNS[0], seed, scale)
    truth = _truth(sim, base, seed, planted_values(run.k, RTP_SITE))
    truth["log"] = {"lines_by_kind": counts, "steps_with_prefill": int((sim.steps.prefills > 0).sum())}
    write_json(folder / "truth.json", truth)


def _canonical(folder: Path, seed: int, scale: float) -> None:
    def small(k: int, requests: int) -> Simulation:
        count = max(4, round(requests * scale))
        return simulate(seed, k, count, site=OTHER_SITE, runaway=False, length_scale=CANONICAL_LENGTH)

    sim, base = small(5, CANONICAL_REQUESTS), small(0, CANONICAL_BASELINE)
    canonical_writer.write_run(sim, folder / "rounds.jsonl", "k5", utc(2026, 11, 21, 9))
    canonical_writer.write_run(base, folder / "baseline.jsonl", "baseline", utc(2026, 11, 21, 8))
    planted = planted_values(5, OTHER_SITE, length_scale=CANONICAL_LENGTH)
    truth = _truth(sim, base, seed, planted)
    truth["baseline"] = {"realised": realised(base)}
    write_json(folder / "truth.json", truth)
