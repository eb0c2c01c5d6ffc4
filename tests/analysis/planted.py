"""Many simulated runs in one lake, a model name each, so that the real report answers for all of them at once.

`python tests/analysis/planted.py --seeds 400` prints the coverage table of docs/calibration.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))
from lakes import NO_DAY, write_lake
from sample_generator import TASKS, VLLM_SITE, Simulation, Task, simulate

from tracelens.analysis.gap import gap
from tracelens.analysis.gate import gate
from tracelens.analysis.report import ReportOptions, parse_claim
from tracelens.lake.schema import table

ByTask = dict[str, dict[str, Mapping[str, Any]]]
K = 5
#: Whole turns of the generator's load plan (156 requests), so that a small run has the load of a large one.
REQUESTS, BASELINE_REQUESTS, POPULATION = 156, 156, 6_240
#: Outputs of the baseline runs: short, because every token is a row.
SHORT = 0.3
FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_drafted", "tau_committed", "near_k_round_share",
    "rho", "rho_verify", "rho_round", "verify_inflation", "round_cost", "relative_token_time", "speedup_step",
    "tpot_ms", "speedup_tpot",
)  # fmt: skip
#: Terms of the gap that move here: no plain rounds, no drafts of another length.
TERMS = (
    "gap.convention", "gap.alpha_shift", "gap.terminal_cuts", "gap.verify_inflation", "gap.rho_drift", "gap.sampling",
    "gap.unattributed", "gap.prefill_interference", "gap.other",
)  # fmt: skip
ENDS = ("_low", "_high")
#: True relative token times at which decisions are counted.
TIMES = (0.80, 0.90, 0.96, 1.00, 1.04, 1.10, 1.25)
CLAIM = parse_claim("alpha=.72,rho=.1,k=5")


def drawn_tasks(seed: int, requests: int) -> tuple[Task, ...]:
    """Tasks and offenders by chance: the generator's exact shares are a stratified draw, which varies less."""
    rng = np.random.default_rng([seed, requests])
    counts = rng.multinomial(requests, [task.share for task in TASKS])
    found = []
    for task, count in zip(TASKS, counts.tolist(), strict=True):
        bad = rng.binomial(count, task.offender_share) / count if task.offender_share else 0.0
        found.append(dataclasses.replace(task, share=count / requests, offender_share=bad))
    return tuple(found)


def rounds_of(sim: Simulation, name: str, role: str) -> pa.Table:
    """The rounds of one run as rows of the canonical table."""
    names = pa.array([task.name for task in sim.tasks])
    ids = pa.array([f"{name}-{i}" for i in range(len(sim.requests))])
    steps = pa.array([f"{i}" for i in range(len(sim.steps))])
    decoding = np.bincount(sim.step, minlength=len(sim.steps))
    count = len(sim)
    columns: dict[str, Any] = {
        "task_type": pa.DictionaryArray.from_arrays(pa.array(sim.task.astype(np.int32)), names),
        "request_id": pa.DictionaryArray.from_arrays(pa.array(sim.request.astype(np.int32)), ids),
        "step_id": pa.DictionaryArray.from_arrays(pa.array(sim.step.astype(np.int32)), steps),
        "step_share": 1.0 / decoding[sim.step],
        "temperature": np.zeros(count), "top_p": np.ones(count), "num_speculative_tokens": np.full(count, sim.k),
        "round_index": sim.round_index, "batch_size": sim.batch_size, "context_len": sim.context_len,
        "drafted": sim.drafted, "accepted": sim.accepted, "emitted": sim.emitted, "has_prefill": sim.has_prefill,
        "target_us": sim.target_us, "step_us": sim.step_us, "sample_us": sim.sampler_us,
    }  # fmt: skip
    if sim.k:
        columns["draft_us"] = sim.draft_us
    return _table("rounds", columns, count, name, role)


def requests_of(sim: Simulation, name: str, role: str) -> pa.Table:
    """The requests of one run, with their times alone."""
    count = len(sim.requests)
    columns = {
        "task_type": pa.array([sim.tasks[i].name for i in sim.requests.task]),
        "request_id": pa.array([f"{name}-{i}" for i in range(count)]),
        "temperature": np.zeros(count),
        "top_p": np.ones(count),
        "output_tokens": sim.requests.output_tokens,
        "decode_us": sim.requests.decode_us,
    }
    return _table("requests", columns, count, name, role)


def write(folder: Path, seeds: Sequence[int], requests: int = REQUESTS, plain: int = BASELINE_REQUESTS) -> Path:
    """Write one lake with a speculating run and a baseline of other traffic for every seed, as model `m<seed>`."""
    runs = [{"run_id": f"{role}-m{seed}", "role": role, "model": f"m{seed}"}
            for seed in seeds for role in ("speculative", "baseline")]  # fmt: skip
    write_lake(folder, runs=runs)
    writers = {name: pq.ParquetWriter(folder / name / NO_DAY / "runs.parquet", _schema(name))
               for name in ("rounds", "requests")}  # fmt: skip
    for sim, name, role in _simulations(seeds, requests, plain):
        writers["rounds"].write_table(rounds_of(sim, name, role))
        writers["requests"].write_table(requests_of(sim, name, role))
    for writer in writers.values():
        writer.close()
    return folder


def figures_of(lake: Path, level: float = 0.95) -> ByTask:
    """Figures of the real report, and points of every term of the gap to `CLAIM` as `gap.<term>`, with intervals.

    By task (and `total`), then by model; gap and report answer from one session.
    """
    found: ByTask = {}
    for by in (("model",), ("model", "task_type")):
        for stratum in gap(lake, ReportOptions(by=by, claim=CLAIM, level=level)).strata:
            task = str(stratum.key.get("task_type", "total"))
            terms = {f"gap.{t.name}{end}": getattr(t, f"points{end}") for t in stratum.terms for end in ("", *ENDS)}
            found.setdefault(task, {})[str(stratum.key["model"])] = {**stratum.figures, **terms}
    return found


def decisions(
    truth: ByTask, drawn: Path, times: Sequence[float] = TIMES, where: str | None = None
) -> dict[float, dict[str, float]]:
    """Shares of GO, NO_GO and INCONCLUSIVE where the true relative token time is each of `times`.

    The plain step is given, so that the truth is the planted time of a token over it.
    """
    (population,) = truth["total"].values()
    found = {}
    for time in times:
        plain = population["step_token_ms"] / time
        options = ReportOptions(by=("model",), baseline=plain, where=where)
        names = [s.decision for s in gate(drawn, options).strata]
        found[time] = {name: names.count(name) / len(names) for name in ("GO", "NO_GO", "INCONCLUSIVE")}
    return found


def shares(
    truth: ByTask, found: ByTask, width: float = 1.0, names: Sequence[str] = FIGURES
) -> dict[tuple[str, str], float]:
    """Share of the models whose interval, made `width` times as wide, holds the value of the population."""
    out = {}
    for task, by_model in found.items():
        (population,) = truth[task].values()
        for name in names:
            out[task, name] = float(np.mean([_holds(f, name, population[name], width) for f in by_model.values()]))
    return out


def _holds(figures: Mapping[str, Any], name: str, value: float, width: float) -> bool:
    middle, low, high = (figures[f"{name}{end}"] for end in ("", "_low", "_high"))
    return bool(middle - width * (middle - low) <= value <= middle + width * (high - middle))


def _simulations(seeds: Sequence[int], requests: int, plain: int) -> Iterator[tuple[Simulation, str, str]]:
    for seed in seeds:
        tasks = drawn_tasks(seed, requests) if requests == REQUESTS else TASKS
        yield simulate(seed, K, requests, site=VLLM_SITE, tasks=tasks, runaway=False), f"m{seed}", "speculative"
        plain_tasks = drawn_tasks(seed + 500_000, plain) if requests == REQUESTS else TASKS
        yield (
            simulate(seed + 500_000, 0, plain, site=VLLM_SITE, tasks=plain_tasks, runaway=False, length_scale=SHORT),
            f"m{seed}",
            "baseline",
        )


def _schema(name: str) -> pa.Schema:
    return table(name).arrow_schema()


def _table(name: str, columns: Mapping[str, Any], count: int, model: str, role: str) -> pa.Table:
    fixed = {"run_id": f"{role}-{model}", "engine": "house", "surface": "canonical", "source_id": "planted",
             "model": model}  # fmt: skip
    arrays = []
    for field in _schema(name):
        if field.name in fixed:
            array = pa.array([fixed[field.name]]).take(pa.array(np.zeros(count, dtype=np.int32)))
        elif field.name in columns:
            array = pa.array(columns[field.name])
        else:
            array = pa.nulls(count, field.type)
        arrays.append(array.cast(field.type) if not array.type.equals(field.type) else array)
    return pa.Table.from_arrays(arrays, schema=_schema(name))


def main() -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        population = write(Path(folder) / "population", [20_261_129], POPULATION, POPULATION // 2)
        drawn = write(Path(folder) / "seeds", range(options.seeds))
        truth = figures_of(population)
        told = shares(truth, figures_of(drawn), names=(*FIGURES, *TERMS))
        decided = decisions(truth, drawn)
    tasks = list(dict.fromkeys(task for task, _ in told))
    print("| figure | " + " | ".join(tasks) + " |")
    print("|---" * (len(tasks) + 1) + "|")
    for name in (*FIGURES, *TERMS):
        print(f"| `{name}` | " + " | ".join(f"{told[task, name]:.1%}" for task in tasks) + " |")
    print("\n| true relative token time | GO | NO_GO | INCONCLUSIVE |\n|---|---|---|---|")
    for time, names in decided.items():
        print(f"| {time:.2f} | " + " | ".join(f"{share:.1%}" for share in names.values()) + " |")


if __name__ == "__main__":
    main()
