"""From an engine's rows to the lake's: runs, constants, labels, identities."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Reject, Tables
from tracelens.engines.units import INT32_MAX
from tracelens.errors import InputError
from tracelens.ingest import names
from tracelens.lake.schema import DAY_OF, FACTS, table

if TYPE_CHECKING:
    import polars as pl

    from tracelens.ingest.labels import Labels
    from tracelens.ingest.redact import Redaction

# Columns that a row takes from its run when it has none itself.
_FROM_RUN = ("model", "draft_model", "method", "num_speculative_tokens", "forced_acceptance")
# What --set may not touch: the pipeline's own columns and the measurements.
SETTABLE = (
    "replica",
    "process",
    "model",
    "draft_model",
    "method",
    "num_speculative_tokens",
    "task_type",
    "temperature",
    "top_p",
    "forced_acceptance",
    "num_draft_nodes",
)


@dataclass(frozen=True, slots=True)
class Naming:
    """How the runs of a source are named.

    `governs` is the run whose record speaks for all rows of the source that name none, `engine` what it says is theirs.
    """

    source_id: str
    folder_key: str
    run: str | None
    role: str | None
    adopt: Mapping[str, str]
    governs: str | None = None
    engine: str | None = None

    def before_start(self, engine: str) -> str:
        """The run of what was logged before any start: siblings of one folder and engine share it."""
        if self.run or self.governs:
            return self.run or str(self.governs)
        return self.adopt.get(engine) or f"{engine}-{self.folder_key[:8]}"

    def scope(self, engine: str) -> str:
        """Where the runs of a folder and engine meet: their grains are never added to each other."""
        return self.run or f"{engine}-{self.folder_key[:8]}"

    def started(self, engine: str, when: Any, number: int, line: str | None = None) -> str:
        """The run that a start-up line opens: the same name again when its log has grown or was renamed."""
        if self.run:
            return self.run
        stamp = when.strftime("%Y%m%dT%H%M%S") if when is not None else str(number)
        mark = self.source_id if line is None else hashlib.sha256(f"{self.folder_key} {line}".encode()).hexdigest()
        return f"{engine}-{stamp}-{mark[:6]}"


@dataclass(slots=True)
class Finished:
    """Canonical rows of one source and engine, ready to be written."""

    tables: dict[str, pl.DataFrame]
    rejects: list[Reject]
    started_runs: list[str]
    remarks: list[str] = field(default_factory=list)


def parse_sets(sets: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split `--set col=value` into canonical columns (typed) and labels.

    Raises:
        InputError: a value that does not fit its column, or a column that is measured.
    """
    columns: dict[str, Any] = {}
    labels: dict[str, str] = {}
    names = {c.name: c for t in FACTS for c in table(t).columns}
    for key, value in sets.items():
        if key in ("role", "run", "run_id", "engine"):
            raise InputError(f"--set {key}=…: say it with --{key.removesuffix('_id')}")
        if key in SETTABLE:
            columns[key] = _typed(key, value, names[key].arrow)
        elif key in names:
            raise InputError(
                f"--set {key}=…: {key} is measured or the pipeline's own; settable are {', '.join(SETTABLE)}, "
                "and any new name (a label)"
            )
        else:
            labels[key] = value
    return columns, labels


def _typed(key: str, value: str, arrow: str) -> Any:
    if arrow == "bool":
        if value.lower() not in ("true", "false"):
            raise InputError(f"--set {key}={value}: {key} is true or false")
        return value.lower() == "true"
    if arrow not in ("int32", "double"):
        return value
    try:
        number = int(value) if arrow == "int32" else float(value)
    except ValueError as error:
        raise InputError(f"--set {key}={value}: {key} is a number") from error
    high = 1 if key == "top_p" else INT32_MAX
    if not 0 <= number <= high:  # NaN is in no range
        raise InputError(f"--set {key}={value}: {key} is a number from 0 to {high}")
    return number


def finish(
    engine: str, made: Tables, naming: Naming, columns: Mapping[str, Any], labels: Labels,
    redaction: Redaction | None = None, told: Mapping[str, Sequence[pl.DataFrame]] | None = None,
    is_last: bool = True,
) -> Finished:  # fmt: skip
    """Name the runs, fill what the run knows, set constants and labels, refuse what breaks an identity; ids go last.

    `told` is what `told_by` gave of rows of the source that were written before, by table; there are no rows of `runs`
    before the last.
    """
    import polars as pl

    out = Finished({}, list(made.rejects), [])
    starts = None if made.runs is None else names.cleaned(engine, "runs", made.runs)
    runs = _plain_results(_runs(engine, starts, naming), made, naming, out.remarks)
    if made.runs is not None:
        out.started_runs = runs.filter(pl.col("run_key") > 0)["run_id"].to_list()
    for name in FACTS:
        frame: pl.DataFrame | None = getattr(made, name)
        if frame is None or not frame.height:
            continue
        frame = _with_run(engine, names.cleaned(engine, name, frame), runs, naming)
        frame = frame.with_columns(source_id=pl.lit(naming.source_id))
        frame = frame.with_columns(pl.lit(v).alias(c) for c, v in columns.items() if c in table(name).names)
        frame = labels.apply(name, frame)
        if redaction is not None:
            frame = redaction.frame(name, frame)
        frame, refused = _checked(name, frame)
        out.rejects += refused
        if frame.height:
            out.tables[name] = frame.select([c for c in table(name).names if c in frame.columns])
    if is_last:
        before = {} if told is None else told
        seen = {name: [*before.get(name, ()), *told_by(name, out.tables)] for name in FACTS}
        out.tables["runs"] = _run_rows(engine, runs, seen, naming, columns)
    return out


def _runs(engine: str, runs: pl.DataFrame | None, naming: Naming) -> pl.DataFrame:
    """The starts a source tells of, with their names; `run_key` as in `Tables`."""
    import polars as pl

    types = {**table("runs").polars_schema(), "run_key": pl.Int64(), "is_result": pl.Boolean()}
    if runs is None or not runs.height:
        return pl.DataFrame(schema=types)
    known: dict[Any, Any] = {c: t for c, t in types.items() if c in runs.columns}
    frame = runs.select(list(known)).cast(known)
    frame = frame.with_columns(*(pl.lit(None, t).alias(c) for c, t in types.items() if c not in known))
    given = frame["run_id"].to_list()
    lines = runs["start_key"].to_list() if "start_key" in runs.columns else [None] * len(given)
    named = [
        naming.run or given[i] or (naming.started(engine, when, key, lines[i]) if key else naming.before_start(engine))
        for i, (key, when) in enumerate(frame.select("run_key", "started").iter_rows())
    ]
    return frame.with_columns(run_id=pl.Series(named, dtype=pl.String)).select(list(types))


def _plain_results(runs: pl.DataFrame, made: Tables, naming: Naming, remarks: list[str]) -> pl.DataFrame:
    """Runs with `is_plain` for `is_result`: results of a benchmark that say they ran without speculation.

    They stay the baseline whatever `--role` says, and beside results that speculated they don't share the run that
    `--run` names: a run has one role. One with a draft in its rows has said something else, and follows `--role`.
    """
    import polars as pl

    said = pl.col("is_result").fill_null(False) & (pl.col("role") == "baseline").fill_null(False)
    if not runs.select(said).to_series().any():
        return runs.with_columns(is_plain=pl.lit(False)).drop("is_result")
    drafting: set[int] = set()
    facts = [f for name in FACTS if (f := getattr(made, name)) is not None]
    for frame in facts:
        drafts = [pl.col(c) > 0 for c in ("drafted", "accepted") if c in frame.columns]
        if drafts and "run_key" in frame.columns:
            drafting |= set(frame.filter(pl.any_horizontal(drafts).fill_null(False))["run_key"].to_list())
    runs = runs.with_columns(is_plain=said & ~pl.col("run_key").is_in(list(drafting))).drop("is_result")
    plain = runs["is_plain"].sum()
    if not plain:
        return runs
    against, name = naming.role == "speculative", f"{naming.run}-baseline"
    apart = naming.run is not None and (against or plain < runs.height)
    if apart:
        runs = runs.with_columns(run_id=pl.when("is_plain").then(pl.lit(name)).otherwise("run_id"))
    if against or apart:
        results = "1 result that ran" if plain == 1 else f"{plain} results that ran"
        asked = "--role speculative does not hold for " if against else "--run does not hold for "
        stay = "it stays" if plain == 1 else "they stay"
        remarks.append(f"{asked}{results} without speculation: {stay} the baseline{f' (run {name})' if apart else ''}")
    return runs


def _with_run(engine: str, frame: pl.DataFrame, runs: pl.DataFrame, naming: Naming) -> pl.DataFrame:
    import polars as pl

    if "engine" not in frame.columns:
        frame = frame.with_columns(engine=pl.lit(engine))
    for column in ("run_key", "run_id", *_FROM_RUN):
        if column not in frame.columns:
            kind = pl.Int64() if column == "run_key" else table("rounds").polars_schema()[column]
            frame = frame.with_columns(pl.lit(None, kind).alias(column))
    frame = frame.with_columns(pl.col("run_key").fill_null(0))
    told = runs.select("run_key", "is_plain", **{f"_{c}": pl.col(c) for c in ("run_id", *_FROM_RUN)})
    frame = frame.join(told, on="run_key", how="left", maintain_order="left", nulls_equal=False)
    given = pl.lit(naming.run) if naming.run else pl.col("run_id")
    before = pl.col("engine").replace_strict(
        {e: naming.before_start(e) for e in frame["engine"].unique().to_list()}, return_dtype=pl.String
    )
    return frame.with_columns(
        run_id=pl.coalesce(pl.when("is_plain").then("_run_id"), given, "_run_id", before),
        **{c: pl.coalesce(c, pl.col(f"_{c}").cast(frame.schema[c])) for c in _FROM_RUN},
    ).drop("run_key", "is_plain", *(f"_{c}" for c in ("run_id", *_FROM_RUN)))


def _checked(name: str, frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    """Refuse the rows that break an identity of SCHEMA.md."""
    import polars as pl

    from tracelens.engines.generic.block import broken_identities

    types = table(name).polars_schema()
    full = frame.cast({c: t for c, t in types.items() if c in frame.columns})
    missing = [pl.lit(None, t).alias(c) for c, t in types.items() if c not in frame.columns]
    fault = full.with_columns(missing).select(broken_identities(name, full.with_columns(missing)).alias("f"))["f"]
    bad = fault.is_not_null()
    if not bad.any():
        return full, []
    lost = full.with_columns(_fault=fault).filter(bad)
    refused = [
        Reject(line or 0, f"identity broken: {why}", surface)
        for line, surface, why in lost.select("source_line", "surface", "_fault").iter_rows()
    ]
    return full.filter(~bad), refused


def told_by(name: str, tables: Mapping[str, pl.DataFrame]) -> list[pl.DataFrame]:
    """What the rows of a table tell of their runs: each combination of facts once, with its last time (`ended`)."""
    import polars as pl

    if name not in tables:
        return []
    frame, end = tables[name], DAY_OF[name] if name == "rounds" else "ts_end"
    last = pl.col(end).max() if end in frame.columns else pl.lit(None, pl.Datetime("us")).first()
    return [frame.group_by("run_id", "engine", *_FROM_RUN, maintain_order=True).agg(ended=last)]


def told_of(name: str, runs: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The same of runs of which only what all of their rows agree on is known."""
    import polars as pl

    types = table(name).polars_schema()
    facts = {c: types[c] for c in ("run_id", "engine", *_FROM_RUN)}
    return pl.DataFrame(list(runs), schema={**facts, "ended": pl.Datetime("us")})


def _run_rows(
    engine: str,
    runs: pl.DataFrame,
    seen: Mapping[str, Sequence[pl.DataFrame]],
    naming: Naming,
    columns: Mapping[str, Any],
) -> pl.DataFrame:
    """One row a run: what the start-up lines said, or else what all rows of the run agree on."""
    import polars as pl

    types = table("runs").polars_schema()
    agreed = [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in _FROM_RUN]
    parts = [
        pl.concat(frames).group_by("run_id", "engine", maintain_order=True).agg(pl.col("ended").max(), *agreed)
        for frames in seen.values()
        if frames
    ]
    if not parts and not runs.height:
        return pl.DataFrame(schema=types)
    observed = (
        pl.concat(parts, how="vertical_relaxed")
        if parts
        else pl.DataFrame(schema={c: types[c] for c in ("run_id", "engine", "ended", *_FROM_RUN)})
    )
    observed = observed.group_by("run_id", "engine", maintain_order=True).agg(
        pl.col("ended").max(), *(pl.col(c).drop_nulls().first() for c in _FROM_RUN)
    )
    named = runs.drop("run_key", "ended")
    if runs.height:
        named = named.group_by("run_id", maintain_order=True).agg(pl.all().drop_nulls().first())
    rows = observed.join(named, on="run_id", how="full", coalesce=True, suffix="_told", maintain_order="left_right")
    is_plain = pl.col("is_plain").fill_null(False)
    rows = rows.with_columns(
        engine=pl.coalesce("engine", "engine_told", pl.lit(engine)),
        **{c: pl.coalesce(f"{c}_told", c) for c in _FROM_RUN},
        role=pl.when(pl.lit(bool(naming.role)) & ~is_plain).then(pl.lit(naming.role)).otherwise("role"),
        source_id=pl.lit(naming.source_id),
    )
    scopes = {e: naming.scope(e) for e in rows["engine"].unique().to_list()}
    scope = pl.col("engine").replace_strict(scopes, return_dtype=pl.String)
    # A baseline that was told apart from the run of its name shares nothing with it.
    rows = rows.with_columns(scope=pl.when(is_plain & pl.lit(naming.run is not None)).then("run_id").otherwise(scope))
    rows = rows.with_columns(
        pl.lit(v).alias(c)
        for c, v in columns.items()
        if c in ("model", "draft_model", "method", "num_speculative_tokens")
    )
    return rows.select([c for c in types if c in rows.columns]).cast(
        {c: t for c, t in types.items() if c in rows.columns}
    )


def run_rows_of(seen: Sequence[Mapping[str, Any]], naming: Naming, columns: Mapping[str, Any]) -> pl.DataFrame:
    """Run rows of a source that tells of no start, from what its rows agree on."""
    import polars as pl

    types = table("runs").polars_schema()
    own = {"role": naming.role, "source_id": naming.source_id}
    constants = {c: v for c, v in columns.items() if c in _FROM_RUN}
    rows = [{**row, **own, **constants, "scope": naming.scope(row["engine"])} for row in seen]
    names = [c for c in types if any(c in row for row in rows)]
    return pl.DataFrame(rows, schema={c: types[c] for c in names}) if rows else pl.DataFrame(schema=types)
