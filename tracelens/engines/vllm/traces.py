"""torch profiler traces of vLLM: one row an engine step.

A step is what lies between two starts of `execute_…` (0.11.1 and later) or of `Preprocess` (0.10.2, 0.11.0) on the
worker's thread. Its phases are the scopes of VLLM_CUSTOM_SCOPES_FOR_PROFILING=1, in two naming generations: `Forward`,
`Draft` … (vllm#24265) and, from 0.11.1, `gpu_model_runner: forward` ….

The draft phase of step t proposes what the forward pass of step t + 1 verifies: the row of a step has the draft phase
that made its tokens. What was accepted is in no trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, Parsed, Reject, Surface, Tables, TraceAbout
from tracelens.engines.traced import complete, stamps, whole_us, within
from tracelens.engines.versions import Range, Switch, Versions, Way
from tracelens.engines.vllm.releases import v1

OTHER, STEPS, HOST, DEVICE = "vllm.trace_rank", "vllm.trace_steps", "vllm.trace", "vllm.trace_device"
_MARKED = "VLLM_CUSTOM_SCOPES_FOR_PROFILING=1"
_V1_RUNNER = "VLLM_USE_V2_MODEL_RUNNER=0 beside it (the V2 runner has no scopes)"
_POSTED = "POST /start_profile and /stop_profile with"
_CONFIG = "--profiler-config.profiler torch --profiler-config.torch_profiler_dir DIR"
_SLOWER = "Profiled steps are slower than production's"
_OWN = f"{_SLOWER}; production's own: TRACELENS_RECORD=DIR (docs/record.md)"
_SCOPES = Switch(
    f"{_MARKED} (from 0.10.2), from 0.29 with {_V1_RUNNER}; then {_POSTED} {_CONFIG} (up to 0.12: "
    f"VLLM_TORCH_PROFILER_DIR). {_OWN}",
    Way(Range("0.10.2", "0.11.0"), f"{_MARKED}; then {_POSTED} VLLM_TORCH_PROFILER_DIR=DIR. {_SLOWER}"),
    Way(Range("0.11.1", "0.12"), f"{_MARKED}; then {_POSTED} VLLM_TORCH_PROFILER_DIR=DIR. {_OWN}"),
    Way(Range("0.13", "0.28"), f"{_MARKED}; then {_POSTED} {_CONFIG}. {_OWN}"),
    Way(Range("0.29"), f"{_MARKED} with {_V1_RUNNER}; then {_POSTED} {_CONFIG}. {_OWN}"),
)
_BARE = "profile; for draft and target times set "
_SPLIT = ("rho_verify", "overhead", "step_ms", "batch_size")
SURFACES: tuple[Surface, ...] = (
    Surface(
        OTHER,
        "torch trace of a further rank (the same steps as the first rank's: not counted again)",
        Versions(v1("0.10.2")),
        (),
        "on by default with several ranks; ingest the first rank's trace",
    ),
    Surface(
        STEPS,
        "torch trace without scopes: profiled steps, slower than production's, with no time of any phase",
        Versions(v1("0.11.1")),
        ("step_ms", "batch_size"),
        Switch(_BARE + _SCOPES.text, *(Way(way.range, _BARE + way.text) for way in _SCOPES.ways)),
    ),
    Surface(
        HOST,
        "torch trace, times of the host: profiled steps, slower than production's",
        Versions(v1("0.10.2"), " (V1 runner)"),
        _SPLIT,
        _SCOPES,
    ),
    Surface(
        DEVICE,
        "torch trace, times of the GPU: profiled steps, slower than production's",
        Versions(v1("0.10.2"), " (V1 runner)"),
        _SPLIT,
        _SCOPES,
    ),
)
MARKS: Sequence[bytes] = (
    b'"gpu_model_runner: ',
    b'"execute_',
    *(f'"{name}"'.encode() for name in ("Preprocess", "Forward", "Sample", "Draft")),
)

_PHASES = ("forward", "sample", "draft")
_GPU = "gpu_user_annotation"
# 0.11.1-0.13; 0.14 on; 0.26 on with detailed_trace_annotation (sums of query and KV lengths, and of their products).
_NEW_CACHED = r"^execute_new_(\d{1,9})_cached_(\d{1,9})$"
_COUNTED = r"^execute_context_(\d{1,9})\((\d{1,12})\)_generation_(\d{1,9})\((\d{1,12})\)$"
_DETAILED = r"^execute_\d+_context_(\d{1,9})\(sq(\d{1,12})sk.*\)_generation_(\d{1,9})\(sq(\d{1,12})sk.*\)$"
_RANKS = re.compile(r"(?:^|[_/])dp(\d{1,6})_pp(\d{1,6})_tp(\d{1,6})")
_RANK = re.compile(r"rank-?(\d{1,6})\b")


def parse(events: pl.DataFrame, about: TraceAbout) -> Parsed:
    """Take events (columns of `TraceReader.trace`): one row a step."""
    parsed = Parsed()
    own, parsed.rejects = complete(_own(events), HOST)
    host = own.filter(pl.col("cat").fill_null("") != _GPU)
    begins = _begins(host)
    if not begins.height:
        return Parsed()
    parsed.claimed = own.height
    thread = begins.group_by("pid", "tid", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    first = thread.head(1)
    steps = _steps(begins.join(first, on=["pid", "tid"], how="semi", nulls_equal=True))
    # Traces of several ranks put together: the one with most steps counts.
    others = begins.join(first, on="pid", how="anti", nulls_equal=True)
    parsed.add(OTHER, others.select(line="event"))
    rank = _Rank(about)
    if not rank.drives:
        parsed.add(OTHER, steps.select(line="event"))
        return parsed
    phases, surface = _timed(own, host.join(first, on=["pid", "tid"], how="semi", nulls_equal=True), steps, about)
    version = about.others.get("vllm_version")
    parsed.add(
        surface,
        steps.join(phases, on="step", how="left", maintain_order="left").with_columns(
            *stamps("ts", about, "ts_start"),
            line="event",
            version=pl.lit(version if isinstance(version, str) else None, pl.String),
            process=pl.lit(None if rank.rank is None else f"rank {rank.rank}", pl.String),
            replica=pl.lit(rank.replica, pl.String),
        ),
    )
    return parsed


def _begins(host: pl.DataFrame) -> pl.DataFrame:
    """Where steps begin: `execute_…`, or `Preprocess` in the releases that had no such range."""
    execute = host.filter(pl.col("kind") == "execute")
    # Other programs name their ranges so, too; all of these together are vLLM's.
    if execute.height or not {"preprocess", "forward", "sample"} <= set(host["kind"].to_list()):
        return execute
    return host.filter(pl.col("kind") == "preprocess")


class _Rank:
    """Which rank wrote the trace. Ranks of one tensor-parallel group run the same steps: the first one counts.

    From 0.17 the file's name has the rank in every group. Otherwise the rank in the whole world decides, and of
    several data-parallel engines only the first counts.
    """

    def __init__(self, about: TraceAbout) -> None:
        name = (about.file or "").rsplit("/", 1)[-1]
        groups, told = _RANKS.search(name), _RANK.search(name)
        self.rank = about.rank if about.rank is not None else int(told[1]) if told else None
        self.replica = str(int(groups[1])) if groups else None
        self.drives = int(groups[2]) == int(groups[3]) == 0 if groups else self.rank in (None, 0)


def _own(events: pl.DataFrame) -> pl.DataFrame:
    """The events that are vLLM's scopes, with their `kind`: execute, preprocess, forward, sample, draft."""
    name = pl.col("name")
    scope = name.str.extract(r"^gpu_model_runner: (preprocess|forward|sample|draft)$", 1)
    old = name.str.extract(r"^(Preprocess|Forward|Sample|Draft)$", 1).str.to_lowercase()
    execute = pl.any_horizontal(name.str.contains(p) for p in (_NEW_CACHED, _COUNTED, _DETAILED))
    kind = pl.when(execute).then(pl.lit("execute")).otherwise(pl.coalesce(scope, old))
    annotation = pl.col("cat").is_in(["user_annotation", _GPU])  # a Python function or an operator may be named so, too
    return events.filter(annotation).with_columns(kind=kind).filter(pl.col("kind").is_not_null())


def _steps(begins: pl.DataFrame) -> pl.DataFrame:
    """Steps in order, with what the names of their ranges count (null where they do not).

    Columns: `step`, `event`, `ts`, `dur`, `next` (start of the next step), `context`, `context_tokens`, `generation`,
    `generation_tokens`.
    """
    name = pl.col("name")
    old = {"context": 1, "generation": 2}  # requests alone
    counts = {
        column: pl.coalesce(
            name.str.extract(_COUNTED, i),
            name.str.extract(_DETAILED, i),
            *([name.str.extract(_NEW_CACHED, old[column])] if column in old else []),
        ).cast(pl.Int64)
        for i, column in enumerate(("context", "context_tokens", "generation", "generation_tokens"), 1)
    }
    return (
        begins.sort("ts", maintain_order=True)
        .with_row_index("step")
        .select(
            pl.col("step").cast(pl.Int64),
            "event",
            "ts",
            "dur",
            next=pl.col("ts").shift(-1),
            **counts,
        )
    )


def _timed(own: pl.DataFrame, host: pl.DataFrame, steps: pl.DataFrame, about: TraceAbout) -> tuple[pl.DataFrame, str]:
    """Times of the phases by step (us), of the device where it tells them, and the surface that this makes."""
    scopes = within(host.filter(pl.col("kind").is_in(_PHASES)), steps)
    device = own.filter((pl.col("cat") == _GPU) & pl.col("kind").is_in(_PHASES))
    if not scopes.filter(pl.col("kind") == "forward").height:
        return _sums(scopes.clear()), STEPS
    if device.height:
        placed = _placed(device, scopes)
        if placed is not None:
            return _sums(placed), DEVICE
    if device.height or about.devices:
        # Ranges of the host on a GPU last as long as the launches take, which says nothing of the work.
        return _sums(scopes.clear()), STEPS
    return _sums(scopes), HOST


def _sums(scopes: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("kind")
    return scopes.group_by("step", maintain_order=True).agg(
        pl.when((kind == p).any()).then(pl.col("dur").filter(kind == p).sum()).alias(p) for p in _PHASES
    )


def _placed(device: pl.DataFrame, scopes: pl.DataFrame) -> pl.DataFrame | None:
    """Ranges of the device with the step they belong to; None where they cannot be matched.

    A range of the host has one on every stream that it launched work on: the stream with most forward time is the
    model's. There the forward passes come in the order of the host's, or carry the same `External id`; what follows
    one, up to the next, is of its step.
    """
    forward = device.filter(pl.col("kind") == "forward")
    time = forward.group_by("pid", "tid", maintain_order=True).agg(pl.col("dur").sum()).sort("dur", descending=True)
    stream = device.join(time.head(1), on=["pid", "tid"], how="semi", nulls_equal=True)
    passes = stream.filter(pl.col("kind") == "forward").sort("ts", maintain_order=True)
    asked = scopes.filter(pl.col("kind") == "forward").sort("ts", maintain_order=True)
    external = pl.col("args").str.extract(r'"External id"\s*:\s*(\d{1,18})\b', 1)
    named, asked = passes.with_columns(_id=external), asked.with_columns(_id=external)
    found = named.join(asked.filter(pl.col("_id").is_unique()).select("_id", "step"), on="_id", maintain_order="left")
    if found.height < passes.height or not found["step"].is_sorted():
        if passes.height != asked.height:
            return None
        found = passes.with_columns(step=asked["step"])
    return within(stream, found.select("step", "ts"))


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Canonical rows of this module's surfaces (those of `SURFACES` that are in `frames`)."""
    tables = Tables()
    parts = [_windows(frames[s], s, tables) for s in (STEPS, HOST, DEVICE) if s in frames]
    if not parts:
        return tables
    tables.windows = pl.concat(parts, how="diagonal_relaxed")
    versions = pl.concat([frames[s].select("version") for s in (STEPS, HOST, DEVICE) if s in frames])
    version = versions["version"].drop_nulls()
    if len(version):
        tables.runs = pl.DataFrame({"run_key": [0], "engine_version": [version[0]]})
    return tables


def _windows(frame: pl.DataFrame, surface: str, tables: Tables) -> pl.DataFrame:
    """One window a step; steps of no request only end the one before."""
    context, generation, tokens = pl.col("context"), pl.col("generation"), pl.col("generation_tokens")
    frame = _paired(frame.sort("step"))
    short = (tokens < generation).fill_null(False)
    for line in frame.filter(short)["line"].to_list():
        tables.rejects.append(Reject(line, "generation requests <= generation tokens does not hold", surface))
    frame = frame.filter(~short & (context + generation > 0).fill_null(True))
    frame = frame.with_columns(drafted=tokens - generation)
    k = _draft_length(frame)
    drafts = (pl.col("drafted") > 0).fill_null(False)
    plain = (pl.col("drafted") == 0).fill_null(False)
    speculates = frame.select((drafts | pl.col("draft").is_not_null()).any()).item()
    even = drafts & (pl.col("drafted") == generation * (k or -1))
    # With prefill in it a step's times are not those of a round.
    clean = (context == 0).fill_null(True)
    times = {
        f"{name}_us": whole_us(pl.when(clean).then(source))
        for name, source in (
            ("draft", "drafted_by"),
            ("target", "forward"),
            ("sample", "sample"),
            ("step", "step_time"),
        )
    }
    return frame.with_columns(**times).select(
        "replica", "process", "ts_start", "ts_basis", "drafted", *times,
        source_line="line",
        surface=pl.lit(surface),
        ts_end=pl.col("ts_start") + pl.duration(microseconds=whole_us(pl.coalesce("step_time", "dur"))),
        window_us=whole_us(pl.col("step_time")),
        steps=pl.lit(1, pl.Int64),
        rounds=pl.when(drafts).then(generation).when(plain).then(pl.lit(0, pl.Int64)),
        plain_steps=pl.when(plain).then(generation).when(even).then(pl.lit(0, pl.Int64)),
        # A step that has fewer drafts than K for each request may have had requests without any.
        rounds_basis=pl.when(even | plain).then(pl.lit("derived")).when(drafts).then(pl.lit("estimated")),
        accepted=pl.when(plain & ~pl.lit(speculates)).then(pl.lit(0, pl.Int64)),
        counts_basis=pl.when(pl.col("drafted").is_not_null()).then(pl.lit("derived")),
        time_basis=pl.when(pl.any_horizontal(pl.col(*times).is_not_null())).then(pl.lit("sum")),
        num_speculative_tokens=pl.lit(k, pl.Int32),
        running=context + generation,
        prompt_tokens="context_tokens",
    )  # fmt: skip


def _paired(frame: pl.DataFrame) -> pl.DataFrame:
    """Add `drafted_by`, the draft phase of the step before, and `step_time`.

    A step with prefill drafts behind the whole prompt: its draft phase is no round's. Where the next step has no
    request that was running, the engine may have been idle between: the time up to it is not a step's.
    """
    mixed = (pl.col("context") > 0).fill_null(False)
    idle = ((pl.col("context").shift(-1) > 0) & (pl.col("generation").shift(-1) == 0)).fill_null(False)
    return frame.with_columns(
        drafted_by=pl.when(~mixed.shift(1)).then(pl.col("draft").shift(1)),
        step_time=pl.when(~idle).then(pl.col("next") - pl.col("ts")),
    )


def _draft_length(frame: pl.DataFrame) -> int | None:
    """K: the whole number of drafts a request that most steps had; None where some had more."""
    each = frame.filter((pl.col("drafted") > 0) & (pl.col("drafted") % pl.col("generation") == 0))
    lengths = each.select(k=pl.col("drafted") // pl.col("generation")).group_by("k").len().sort("len", "k")
    if not lengths.height:
        return None
    k = int(lengths["k"][-1])
    more = frame.filter(pl.col("drafted") > k * pl.col("generation")).height
    return None if more or k > 2**31 - 1 else k
