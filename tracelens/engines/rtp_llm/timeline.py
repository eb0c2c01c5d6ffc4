"""RTP-LLM's timelines (Kineto traces): one row a call of `executor.mtp.process` that decodes.

The scopes are those of main since 2026-03-25; v0.2.0 has none. Scopes are ranges of the host. What the device did in a
phase are the kernels and copies whose launches lie in the phase's scopes. Every decode step runs the K passes of the
drafter: K - 1 in the loop before the verify pass and the tail behind it, which proposes the next step's first token.
They are the step's draft phase together. Acceptance is in no trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from tracelens.engines.base import Parsed, Surface, TraceAbout
from tracelens.engines.traced import complete, stamps, whole_us, within
from tracelens.engines.versions import Range, Versions

OTHER, HOST, DEVICE = "rtp.timeline_rank", "rtp.timeline", "rtp.timeline_device"
_SWITCH_ON = (
    'POST /start_profile {"trace_name","start_step","num_steps"} (since 2026-03-22), or generate_config.gen_timeline: '
    "true; profiled steps are slower than production's"
)
_TIMES = ("rho_verify", "overhead", "step_ms", "batch_size")
SURFACES: Sequence[Surface] = (
    Surface(
        OTHER,
        "timeline of a further rank (the same steps as rank 0's: not counted again)",
        Versions("main since ", Range("2026-03-25", form="{first}")),
        (),
        'POST /start_profile with "enable_all_rank": false; ingest the file of wr0',
    ),
    Surface(
        HOST,
        "timeline without kernels, times of the host: profiled steps, slower than production's",
        Versions("main since ", Range("2026-03-25", form="{first}")),
        _TIMES,
        _SWITCH_ON,
    ),
    Surface(
        DEVICE,
        "timeline, times of the GPU: profiled steps, slower than production's",
        Versions("main since ", Range("2026-03-25", form="{first}")),
        _TIMES,
        _SWITCH_ON,
    ),
)
MARKS: Sequence[bytes] = (b'"executor.mtp.', b'"speculative_sampler.')
LAUNCH_MARKS: Sequence[bytes] = (b'"executor.mtp.',)
# Steps whose kernels are looked at together.
_STEPS = 64

# What the parentheses of decode_step(…) and draft_model_decode(…) begin with, by phase.
_PHASE = {
    "batch_size": "draft", "loop_iter": "draft", "draft_model_forward": "draft", "draft_model_sample": "draft",
    "dspark_propose_forward": "draft", "dspark_draft_sample": "draft",
    "target_model_verify": "target",
    "rejection_sampling": "sample",
    "wait_pending_linear_attn_swaps": "rollback", "update_kv_cache_kernel_block_id": "rollback",
    "gather_model_input": "repack", "tp_sync_input_rank0": "repack", "prepare_decode_input_and_tp_sync": "repack",
    "build_spec_decode_input": "repack", "tp_sync_post_rejection": "repack",
    "wait_prev_bookkeeping": "emit_lag", "dispatch_output": "emit_lag", "dispatch_output_async": "emit_lag",
}  # fmt: skip
_COMPUTE = ("draft", "target", "sample")
# What the host does between the passes: repair, re-packing, emission.
_BETWEEN = ("rollback", "repack", "emit_lag")
_PROCESS = r"^executor\.mtp\.process\(stream_size=(\d{1,9}),\s*mtp_step=(\d{1,4})\)"
_DECODE = r"^executor\.mtp\.decode_step\(decode_stream_size=(\d{1,9})\)"
_PARTS = r"^executor\.mtp\.(?:decode_step|draft_model_decode)\(([a-z_0-9]+)"
_WORLD_RANK = re.compile(r"_wr(\d{1,6})_")


def parse(events: pl.DataFrame, about: TraceAbout) -> Parsed:
    """Take events (columns of `TraceReader.trace`): one row a step that decodes."""
    parsed = Parsed()
    name = pl.col("name")
    own = events.filter(name.str.starts_with("executor.mtp.") | name.str.starts_with("speculative_sampler."))
    own, parsed.rejects = complete(own, HOST)
    calls = own.filter(name.str.contains(_PROCESS))
    if not calls.height:
        return parsed
    parsed.claimed = own.height
    thread = calls.group_by("pid", "tid", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    first = thread.head(1)
    # Timelines of several ranks put together: the one with most steps counts.
    parsed.add(OTHER, calls.join(first, on="pid", how="anti", nulls_equal=True).select(line="event"))
    steps = _steps(own.join(first, on=["pid", "tid"], how="semi", nulls_equal=True))
    told = _WORLD_RANK.search((about.file or "").rsplit("/", 1)[-1])
    rank = about.rank if about.rank is not None else int(told[1]) if told else None
    if rank:
        parsed.add(OTHER, steps.select(line="event"))
        return parsed
    segments = _segments(own.join(first, on=["pid", "tid"], how="semi", nulls_equal=True), steps)
    device = None
    if about.work is not None:
        own_thread = [pl.col(name).eq_missing(first[name][0]) for name in ("pid", "tid")]
        device = _device(about.work, own_thread, segments)
    host = _sums(segments.with_columns(dur=pl.col("end") - pl.col("begin")), _COMPUTE + _BETWEEN)
    if device is None and about.devices:
        # Without its kernels a phase on a GPU is the time that the launches took: not measured.
        host = host.with_columns(pl.lit(None, pl.Float64).alias(phase) for phase in _COMPUTE)
    if device is not None:
        host = host.drop(_COMPUTE).join(device, on="step", how="left", maintain_order="left")
    parsed.add(
        HOST if device is None else DEVICE,
        steps.join(host, on="step", how="left", maintain_order="left").with_columns(
            *stamps("ts", about, "ts_start"),
            line="event",
            process=pl.lit(None if rank is None else f"rank {rank}", pl.String),
        ),
    )
    return parsed


def _steps(own: pl.DataFrame) -> pl.DataFrame:
    """Calls that decode: `step`, `event`, `ts`, `dur`, `k`, `streams` (that decode), `mixed` (prefill too)."""
    name = pl.col("name")
    calls = own.filter(name.str.contains(_PROCESS)).sort("ts", maintain_order=True).with_row_index("step")
    calls = calls.with_columns(pl.col("step").cast(pl.Int64), k=name.str.extract(_PROCESS, 2).cast(pl.Int32))
    inner = within(own.filter(~name.str.contains(_PROCESS)), calls).group_by("step").agg(
        streams=name.str.extract(_DECODE, 1).cast(pl.Int64).max(),
        mixed=name.str.starts_with("executor.mtp.prefill_step").any(),
    )  # fmt: skip
    steps = calls.join(inner, on="step", how="left", maintain_order="left")
    return steps.filter(pl.col("streams") > 0).select("step", "event", "ts", "dur", "k", "streams", "mixed")


def _segments(own: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The stretches of a step that belong to one phase: `step`, `phase`, `begin`, `end` (us).

    A scope inside another one has its time alone: the input of the verify pass is built in the draft loop's scope.
    """
    name = pl.col("name")
    part = name.str.extract(_PARTS, 1).replace_strict(_PHASE, default=None, return_dtype=pl.String)
    sampler = pl.when(name.str.starts_with("speculative_sampler.")).then(pl.lit("sample"))
    scopes = within(own.filter(~name.str.contains(_PROCESS)).with_columns(phase=pl.coalesce(part, sampler)), steps)
    closes = steps.select("step", _close=pl.col("ts") + pl.col("dur"))
    scopes = scopes.join(closes, on="step", maintain_order="left").filter(pl.col("ts") < pl.col("_close"))
    scopes = scopes.with_columns(_end=pl.min_horizontal(pl.col("ts") + pl.col("dur"), "_close"))
    scopes = scopes.sort("ts", "_end", descending=[False, True], maintain_order=True)
    out: list[tuple[int, str, float, float]] = []
    opened: list[tuple[int, str | None, float]] = []  # step, phase, end
    at = 0.0

    def until(time: float) -> None:
        nonlocal at
        step, phase, _ = opened[-1]
        if phase is not None and time > at:
            out.append((step, phase, at, time))
        at = max(at, time)

    # A profile has a thousand steps at most (RTP-LLM's own limit), with some twenty scopes each.
    for step, phase, begin, end in scopes.select("step", "phase", "ts", "_end").iter_rows():
        while opened and opened[-1][2] <= begin:
            until(opened[-1][2])
            opened.pop()
        if opened:
            until(begin)
        at = begin
        opened.append((step, phase, min(end, opened[-1][2]) if opened else end))
    while opened:
        until(opened[-1][2])
        opened.pop()
    schema = {"step": pl.Int64, "phase": pl.String, "begin": pl.Float64, "end": pl.Float64}
    return pl.DataFrame(out, schema=schema, orient="row")


def _device(work: pl.DataFrame, own_thread: list[pl.Expr], segments: pl.DataFrame) -> pl.DataFrame | None:
    """Time of the device by step and phase: its busy time, so that streams that run side by side count once.

    None where nothing of a verify pass is known: the trace has no kernels of these steps.
    """
    segments = segments.sort("begin")
    if not segments.height:
        return None
    launched = work["launched"].to_numpy()
    begins, ends = segments["begin"].to_numpy(), segments["end"].to_numpy()
    # A trace has hundreds of thousands of kernels: the stretches of some steps at a time keep this small. They stand
    # together, as one step follows the other on a thread.
    changes = np.flatnonzero(np.diff(segments["step"].to_numpy(), prepend=-1))
    cuts = [*changes[::_STEPS].tolist(), segments.height]
    found = []
    for first, last in pairwise(cuts):
        low, high = np.searchsorted(launched, (begins[first], ends[first:last].max())).tolist()
        mine = work.slice(low, high - low).select(pl.col("launched", "start", "dur").filter(own_thread))
        found.append(_busy(mine, segments.slice(first, last - first)))
    sums = pl.concat(found)
    return _sums(sums, _COMPUTE) if (sums["phase"] == "target").any() else None


def _busy(work: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """`step`, `phase` and `dur`, the busy time of the device with what was launched in such stretches of one thread."""
    launched = work["launched"].to_numpy()
    place = np.searchsorted(segments["begin"].to_numpy(), launched, side="right") - 1
    inside = np.flatnonzero((place >= 0) & (launched < segments["end"].to_numpy()[place]))
    start, dur = work["start"].to_numpy()[inside], work["dur"].to_numpy()[inside]
    keys = segments.select("step", "phase").with_columns(key=pl.struct("step", "phase").rank("dense").cast(pl.Int64))
    key = keys["key"].to_numpy()[place[inside]]
    order = np.lexsort((start, key))
    key, start, stop = key[order], start[order], (start + dur)[order]
    # The latest end so far of the same key: ranks of the ends, lifted by the key, so that a new key begins anew.
    by_stop = np.argsort(stop)
    rank = np.empty(len(stop), np.int64)
    rank[by_stop] = np.arange(len(stop))
    lift = key * len(stop)
    latest = stop[by_stop[np.maximum.accumulate(lift + rank) - lift]]
    before = np.where(np.diff(key, prepend=0) > 0, -np.inf, np.roll(latest, 1))
    busy = np.bincount(key, np.maximum(stop - np.maximum(start, before), 0))
    sums = keys.unique("key", maintain_order=True).filter(pl.col("key").is_in(np.unique(key).tolist()))
    return sums.select("step", "phase", dur=pl.lit(busy[sums["key"].to_numpy()]))


def _sums(pieces: pl.DataFrame, phases: Sequence[str]) -> pl.DataFrame:
    phase = pl.col("phase")
    return pieces.group_by("step", maintain_order=True).agg(
        pl.when((phase == p).any()).then(pl.col("dur").filter(phase == p).sum()).alias(p) for p in phases
    )


def windows(frames: Mapping[str, Any]) -> list[pl.DataFrame]:
    """Canonical windows, one a step.

    `step_us` is the whole call, as in RTP-LLM's own rtp_llm_sp_step_latency_us; with prefill in it, it is no round's.
    Repair, re-packing and emission are the host's in both surfaces.
    """
    return [_windows(pl.concat(frames[surface]), surface) for surface in (HOST, DEVICE) if frames.get(surface)]


def _windows(frame: pl.DataFrame, surface: str) -> pl.DataFrame:
    times = {f"{phase}_us": whole_us(pl.col(phase)) for phase in _COMPUTE + _BETWEEN}
    times["step_us"] = whole_us(pl.when(~pl.col("mixed")).then("dur"))
    span = whole_us(pl.col("dur"))
    return frame.with_columns(**times).select(
        "process", "ts_start", "ts_basis", *times,
        source_line="line",
        surface=pl.lit(surface),
        ts_end=pl.col("ts_start") + pl.duration(microseconds=span),
        window_us=span,
        steps=pl.lit(1, pl.Int64),
        rounds="streams",
        plain_steps=pl.lit(0, pl.Int64),
        drafted=pl.col("streams") * pl.col("k"),
        rounds_basis=pl.lit("logged"),
        counts_basis=pl.lit("derived"),
        time_basis=pl.lit("sum"),
        num_speculative_tokens="k",
        running="streams",
    )  # fmt: skip
