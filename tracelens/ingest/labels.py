"""Labels of requests: from a file, from rules in `tracelens.toml`, from `--set`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError
from tracelens.lake.schema import table

if TYPE_CHECKING:
    import polars as pl

# Columns that a label file may fill; any other column of it goes into the map `labels`.
LABEL_COLUMNS = ("task_type", "model", "draft_model", "method", "temperature", "top_p", "num_speculative_tokens")
_RULE_KEYS = {"type", "request_id", "model", "temperature"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[task]]` of tracelens.toml: all conditions given must hold; the first rule that fits wins."""

    type: str
    request_id: str | None = None
    model: str | None = None
    temperature: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """Everything that names requests: a file's rows by request key, rules, and constants."""

    rows: pl.DataFrame | None = None
    rules: tuple[Rule, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)

    def apply(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Fill canonical columns that are null and the map `labels` of rows of one table."""
        import polars as pl

        types = table(name).polars_schema()
        frame = frame.with_columns(
            pl.lit(None, types[c]).alias(c) for c in (*LABEL_COLUMNS, "labels") if c not in frame.columns
        )
        values: dict[str, pl.Expr] = {k: pl.lit(v) for k, v in self.constants.items()}
        if self.rows is not None and "request_id" in frame.columns:
            frame, given = self._from_file(frame, types)
            # A map has a key once: what the file says of a request stands before what --set says of all.
            values |= {k: pl.coalesce(v, values[k]) if k in values else v for k, v in given.items()}
        extra = [pl.struct(key=pl.lit(k), value=v) for k, v in values.items()]
        if extra:
            pairs = pl.concat_list(extra).list.filter(pl.element().struct.field("value").is_not_null())
            frame = frame.with_columns(labels=pl.concat_list(pl.col("labels").fill_null([]), pairs))
            frame = frame.drop([c for c in frame.columns if c.startswith("_label_")])
        return self._from_rules(frame)

    def _from_file(
        self, frame: pl.DataFrame, types: Mapping[str, pl.DataType]
    ) -> tuple[pl.DataFrame, dict[str, pl.Expr]]:
        """The rows with what the file says of them, and the values of its other columns, for the map."""
        import polars as pl

        assert self.rows is not None
        renamed = self.rows.rename({c: f"_label_{c}" for c in self.rows.columns if c != "_key"})
        joined = frame.with_columns(_key=request_key(pl.col("request_id"))).join(
            renamed, on="_key", how="left", maintain_order="left"
        )
        given = [c for c in LABEL_COLUMNS if f"_label_{c}" in joined.columns]
        joined = joined.with_columns(
            # A label that a person gave wins over what the record says of its task.
            *(pl.coalesce(_fitting(f"_label_{c}", c, types[c]), c).alias(c) for c in given)
        ).drop("_key")
        others = [c for c in self.rows.columns if c != "_key" and c not in LABEL_COLUMNS]
        return joined, {c: pl.col(f"_label_{c}").cast(pl.String) for c in others}

    def _from_rules(self, frame: pl.DataFrame) -> pl.DataFrame:
        import polars as pl

        chain: Any = pl.col("task_type")
        for rule in reversed(self.rules):
            tests: list[pl.Expr] = []
            if rule.request_id is not None:
                if "request_id" not in frame.columns:
                    continue
                tests.append(pl.col("request_id").str.contains(rule.request_id))
            if rule.model is not None:
                tests.append(pl.col("model").str.contains(rule.model))
            if rule.temperature is not None:
                tests.append(pl.col("temperature").is_between(*rule.temperature))
            hit = pl.all_horizontal(tests).fill_null(False)
            chain = pl.when(hit & pl.col("task_type").is_null()).then(pl.lit(rule.type)).otherwise(chain)
        return frame.with_columns(task_type=chain)


def _fitting(name: str, column: str, kind: pl.DataType) -> pl.Expr:
    """A label as a value of its column; null where it is none (it would make its row break an identity)."""
    import polars as pl

    value = pl.col(name).cast(kind, strict=False)
    if not kind.is_numeric():
        return value
    high = {"top_p": 1.0, "temperature": 1e6}.get(column, float(2**31))
    return pl.when(value.is_between(0, high)).then(value)


def request_key(column: pl.Expr) -> pl.Expr:
    """The id that a request has on every surface: the macro `request_key` of queries/views.sql, in polars."""
    import polars as pl

    chat = column.str.extract(r"^chatcmpl-(.*?)(?:-[0-9a-f]{8})?$", 1)
    completion = column.str.extract(r"^cmpl-(.*?)(?:-0)?(?:-[0-9a-f]{8})?$", 1)
    return (
        pl.when(column.str.starts_with("chatcmpl-"))
        .then(chat)
        .when(column.str.starts_with("cmpl-"))
        .then(completion)
        .otherwise(column)
    )


def read_labels(path: Path) -> pl.DataFrame:
    """Read a label file (CSV, JSON lines or Parquet) into text columns and `_key`.

    Raises:
        InputError: no such file, not readable as what its name says, no column request_id, one request labelled twice
            with different values.
    """
    import polars as pl

    if not path.is_file():
        raise InputError(f"--labels {path}: no such file")
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif suffix in (".jsonl", ".ndjson", ".json"):
            frame = pl.read_ndjson(path, infer_schema_length=None)
        else:
            frame = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"--labels {path}: can't be read as {suffix or 'CSV'}: {str(error).splitlines()[0]}"
        ) from error
    if "request_id" not in frame.columns:
        raise InputError(f"--labels {path}: no column request_id (it has {', '.join(frame.columns[:12])})")
    flat = [c for c, t in frame.schema.items() if not t.is_nested()]
    frame = frame.select(pl.col(flat).cast(pl.String)).filter(pl.col("request_id").is_not_null())
    frame = frame.with_columns(_key=request_key(pl.col("request_id"))).drop("request_id").unique(maintain_order=True)
    twice = frame.filter(pl.col("_key").is_duplicated())["_key"].unique()
    if len(twice):
        raise InputError(
            f"--labels {path}: {len(twice)} request ids are labelled twice with different values; keep one row each"
        )
    return frame


def read_rules(path: Path | None) -> tuple[Rule, ...]:
    """Read the `[[task]]` rules of a tracelens.toml; none without a file.

    Raises:
        InputError: not TOML, an unknown key, a pattern that is none, a range that is none.
    """
    if path is None or not path.is_file():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # bytes that are no text, no TOML, no date, more digits than a number has
        raise InputError(f"{path}: not valid TOML: {error}") from error
    rules = document.get("task", [])
    if not isinstance(rules, list):
        raise InputError(f"{path}: write task rules as [[task]]")
    return tuple(_rule(path, i, rule) for i, rule in enumerate(rules, 1))


def _rule(path: Path, number: int, rule: Any) -> Rule:
    where = f"{path}: [[task]] number {number}"
    if not isinstance(rule, dict) or not isinstance(rule.get("type"), str):
        raise InputError(f'{where}: needs type = "…" (the task type it gives)')
    unknown = set(rule) - _RULE_KEYS
    if unknown or len(rule) < 2:
        raise InputError(
            f"{where}: conditions are request_id, model (patterns) and temperature ([low, high]); "
            f"found {', '.join(sorted(unknown)) or 'none'}"
        )
    for key in ("request_id", "model"):
        if key in rule:
            _pattern(where, key, rule[key])
    span = rule.get("temperature")
    if span is not None and not (_numbers(span) and len(span) == 2 and span[0] <= span[1]):
        raise InputError(f"{where}: temperature is a range [low, high]")
    return Rule(
        rule["type"],
        rule.get("request_id"),
        rule.get("model"),
        None if span is None else (float(span[0]), float(span[1])),
    )


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and abs(v) <= 1e9 for v in values
    )


def _pattern(where: str, key: str, value: Any) -> None:
    import polars as pl

    try:
        re.compile(value)
        pl.Series(["x"]).str.contains(value)
    except (re.error, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{where}: {key} is not a regular expression: {str(error).splitlines()[0]}") from error
