"""GET /server_info (/get_server_info in older releases): a server's arguments, and its step times by batch size.

`step_time_dict` (SGLANG_RECORD_STEP_TIME=1) lists, for each batch size, the mean step of every decode interval at whose
end it was the batch: wall time between two decode lines over the passes between them. Prefills and idle time are in
it, so the middle one is taken, and not their mean. A step of a server that speculates is a round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.sglang import runs
from tracelens.engines.sglang.releases import since
from tracelens.engines.units import BrokenError, finite
from tracelens.engines.versions import Versions

INFO = "sglang.server_info"
KEYS: Sequence[bytes] = (b'"internal_states"',)
SURFACES: tuple[Surface, ...] = (
    Surface(
        INFO,
        "GET /server_info (arguments; step time by batch size)",
        Versions(since("0.4.3")),
        ("method", "num_speculative_tokens", "step_ms"),
        "curl http://HOST:PORT/server_info > server_info.json; SGLANG_RECORD_STEP_TIME=1 adds step times",
    ),
)
_INTERVAL = 40
_LONGEST_S = 3600.0
_ON = re.compile(r"\d{1,6}(?:\.\d{1,9})?")
_SWITCHES = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")
_CELLS: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "run": pl.Boolean, "engine_version": pl.String, **{c: t for c, t in runs.SCHEMA.items() if c not in (
        "run_key", "first_line", "stream", "started")},
    "running": pl.Int64, "passes": pl.Int64, "step_us": pl.Int64, "replica": pl.String,
}  # fmt: skip


def holds(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object is the answer of /server_info: SGLang's arguments beside the states of its schedulers."""
    return isinstance(value.get("internal_states"), list) and "model_path" in value and "tp_size" in value


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Take answers for which `holds` is true."""
    parsed = Parsed()
    rows: list[dict[str, Any]] = []
    for record in records:  # a handful a file
        parsed.claimed += 1
        at = {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}
        rows.append({**at, "run": True, **told(record.value)})
        try:
            rows += [{**at, "run": False, **step} for step in _steps(record.value)]
        except BrokenError as fault:
            parsed.rejects.append(Reject(record.line, str(fault), INFO, record.offset))
    parsed.add(INFO, pl.DataFrame(rows, schema=_CELLS))
    return parsed


def told(value: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a run that a /server_info answer tells (`runs.settings`), with `engine_version`."""
    version = value.get("version")
    row = {**runs.settings(value), "engine_version": version if isinstance(version, str) else None}
    return row | {"forced_acceptance": True if _is_simulated(value) else None}


def states(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """States of the schedulers, one a data-parallel rank."""
    found = value.get("internal_states")
    return [s for s in found if isinstance(s, dict)] if isinstance(found, list) else []


def _is_simulated(value: Mapping[str, Any]) -> bool:
    """Whether acceptance is made up: with SGLANG_EXPOSE_OWN_ENV_VARS=1 the states hold the environment (0.5.23)."""
    for state in states(value):
        own = state.get("env_vars")
        values = [own.get(name) for name in _SWITCHES] if isinstance(own, dict) else []
        if any(_ON.fullmatch(str(v)) and float(str(v)) > 0 for v in values):
            return True
    return False


def _steps(value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    interval = value.get("decode_log_interval")
    passes = interval if isinstance(interval, int) and not isinstance(interval, bool) and interval > 0 else _INTERVAL
    found = [(str(i), s.get("step_time_dict")) for i, s in enumerate(states(value))]
    several = len(found) > 1
    if not any(isinstance(times, dict) for _, times in found):
        found = [("0", value.get("step_time_dict"))]  # older releases: beside the arguments
    for rank, times in found:
        for batch, means in times.items() if isinstance(times, dict) else ():
            if not str(batch).isdecimal() or len(str(batch)) > 6 or not isinstance(means, list):
                raise BrokenError("step_time_dict: wrong type")
            seconds = [finite(mean, "step_time_dict") for mean in means]
            if any(not 0 < mean < _LONGEST_S for mean in seconds):
                raise BrokenError("step_time_dict: out of range")
            if seconds:
                yield {
                    "running": int(batch), "passes": passes * len(seconds), "step_us": round(median(seconds) * 1e6),
                    "replica": rank if several else None,
                }  # fmt: skip


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """What the last answer told of the run before any start, and a window for each of its batch sizes.

    Step times are kept since the start of the server: earlier answers of it are in the last one.
    """
    frame = frames[INFO].sort("line", maintain_order=True)
    frame = frame.filter(pl.col("line") == pl.col("line").max())
    frame = frame.with_columns(context.resolve(frame.select("stamp", "inner")))
    tables = Tables()
    tables.runs = frame.filter("run").select(
        "engine_version", *_RUN, run_key=pl.lit(0, pl.Int64), config=runs.config(),
    )  # fmt: skip
    steps = frame.filter(~pl.col("run"))
    if steps.height:
        # Each request of the batch takes part in each pass; whether it drafted is told by the arguments above.
        method, role = (frame.filter("run")[c].first() for c in ("method", "role"))
        each = (pl.col("passes") * pl.col("running")).alias("rounds" if method else "plain_steps")
        tables.windows = steps.select(
            "running", "step_us", "replica", "ts_basis", *([each] if role else []),
            source_line="line", surface=pl.lit(INFO), ts_end="ts", steps="passes", time_basis=pl.lit("mean"),
            rounds_basis=pl.lit("estimated"),
        )  # fmt: skip
    return tables


_RUN = (
    "model", "draft_model", "method", "role", "num_speculative_tokens", "forced_acceptance", "tensor_parallel",
    "data_parallel", "max_num_seqs",
)  # fmt: skip
