"""What the generic reader takes: data and no code that reads, so that DuckDB (as SQL text) and polars (`pl.sql_expr`)
read the same file in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tracelens.engines.units import LONGEST_DRAFT, LONGEST_US
from tracelens.lake.schema import FACTS, table

# What `record` (or `table`) may say, and the table it names. An explicit word wins over every rule below.
KINDS: Mapping[str, str] = {
    "round": "rounds",
    "rounds": "rounds",
    "window": "windows",
    "windows": "windows",
    "request": "requests",
    "requests": "requests",
    "run": "runs",
    "runs": "runs",
}

# Factor to microseconds by suffix.
UNITS: Mapping[str, int] = {"_us": 1, "_ms": 1_000, "_s": 1_000_000}

# The pipeline's own columns, and maps, in which a log could carry anything (paths, prompts): never read.
NOT_READ = frozenset(
    {"source_id", "source_line", "surface", "ts_basis", "labels", "config", "counters", "counters_since"}
)
NOT_READ |= {"rolled_requests", "rolled_squares", "rolled_longest"}


@cache
def time_columns(name: str) -> Mapping[str, tuple[str, int]]:
    """Spelling -> (canonical column, factor to us) of every duration of a table, in order of preference.

    `draft_us` may be spelled `draft_us`, `draft_ms` or `draft_s`. A value becomes `floor(x * factor + 0.5)`,
    except in `tpot_us`, which is a float.
    """
    stems = [c.name.removesuffix("_us") for c in table(name).columns if c.unit == "us"]
    return {f"{stem}{suffix}": (f"{stem}_us", factor) for stem in stems for suffix, factor in UNITS.items()}


@cache
def stamp_columns(name: str) -> Mapping[str, tuple[str, float | None]]:
    """Spelling -> (canonical column, factor to us) of every time stamp; None: ISO text, or a number by magnitude.

    Magnitudes of a bare epoch number: below 1e11 seconds, 1e14 milliseconds, 1e17 microseconds, else nanoseconds.
    What is then before 2001-09-09 (1e15 us) counts from some start of its own: `ts_basis` relative, no stamp.
    """
    units: dict[str, float | None] = {"": None, "_s": 1e6, "_ms": 1e3, "_us": 1.0, "_ns": 1e-3}
    found: dict[str, tuple[str, float | None]] = {}
    for column in table(name).columns:
        if column.arrow == "timestamp[us]" and column.name not in NOT_READ:
            aliases = [column.name] + (["ts"] if column.name == "ts_end" else [])
            found |= {f"{a}{suffix}": (column.name, factor) for a in aliases for suffix, factor in units.items()}
    return found


def _spelled(name: str, *stems: str) -> frozenset[str]:
    """The given columns of a table with all their spellings."""
    return frozenset(stems) | {k for k, (column, _) in time_columns(name).items() if column in stems}


REQUEST_ONLY = _spelled("requests", "output_tokens", "accepted_hist", "decode_us", "ttft_us", "e2e_us", "tpot_us")
INTERVAL = frozenset({"rounds", "steps", "plain_steps", "accepted_per_pos"}) | _spelled("windows", "window_us")
INTERVAL |= {k for k, (column, _) in stamp_columns("windows").items() if column in k}
_COUNTS = frozenset({"drafted", "accepted", "emitted", "rounds", "steps", "plain_steps", "accepted_per_pos"})
_COUNTS |= {"generated_tokens", "prompt_tokens"} | _spelled("windows", "draft_us", "target_us", "step_us")
RUN_ONLY = frozenset({"engine_version", "engine_flavour", "engine_era", "tensor_parallel", "data_parallel"})
RUN_ONLY |= {"max_num_seqs"} | {k for k, (column, _) in stamp_columns("runs").items() if column in k}

_WHOSE = frozenset({"request_id", "engine", "run_id", "replica", "process", "task_type", "batch_size", "timing_basis"})
_WHOSE |= {k for k, (column, _) in stamp_columns("rounds").items() if column in k}

# In order, the first that fits: the kind, and sets of keys of each of which the record has at least one (not null).
KIND_RULES: Sequence[tuple[str, tuple[frozenset[str], ...]]] = (
    ("request", (REQUEST_ONLY,)),
    ("round", (frozenset({"accepted"}), frozenset({"round_index", "step_id"}))),
    ("request", (frozenset({"request_id"}), INTERVAL)),
    ("window", (INTERVAL, _COUNTS)),
    # Two counts alone are anybody's summary: a round says whose or when it was, too.
    ("round", (frozenset({"accepted"}), frozenset({"drafted", "emitted"}), _WHOSE)),
    ("run", (RUN_ONLY, frozenset({"run_id", "engine", "model", "method"}))),
)

LIST_FACTS: Mapping[str, Mapping[str, str]] = {
    "windows": {
        "accepted_per_pos_sum": "if(accepted_per_pos is null, null, coalesce(list_sum(accepted_per_pos), 0))",
        "accepted_per_pos_min": "list_min(accepted_per_pos)",
        "accepted_per_pos_max": "list_max(accepted_per_pos)",
        "accepted_per_pos_falls": "accepted_per_pos = list_reverse_sort(accepted_per_pos)",
    },
    "requests": {
        "accepted_hist_sum": "if(accepted_hist is null, null, coalesce(list_sum(accepted_hist), 0))",
        "accepted_hist_min": "list_min(accepted_hist)",
        "accepted_hist_moment": "if(accepted_hist is null, null, coalesce(list_sum(list_transform(accepted_hist, "
        "lambda x, i: x::hugeint * (i - 1))), 0))",
    },
}

# No sampling and no roll-up goes beyond: a row that stands for 1e300 others is the whole report, or no number at all.
_WEIGHTS = ("1e-9", "1e9")
_BASES = "('logged', 'exact', 'derived', 'estimated')"
_OWN: Mapping[str, Sequence[tuple[str, str]]] = {
    "rounds": (
        (f"drafted <= {LONGEST_DRAFT}", f"drafted <= {LONGEST_DRAFT}"),
        ("accepted is not missing", "accepted is not null"),
        ("accepted <= drafted", "accepted <= drafted"),
        # emitted - 1, not accepted + 1: that would overflow an INTEGER at its largest value.
        ("emitted <= accepted + 1", "emitted - 1 <= accepted"),
        # One over the largest batch that an INTEGER holds is 5e-10.
        ("1e-10 <= step_share <= 1", "step_share >= 1e-10 and step_share <= 1"),
        ("timing_basis is known", "timing_basis in ('device', 'host', 'derived')"),
    ),
    "windows": (
        ("accepted <= drafted", "accepted <= drafted"),
        (f"drafted <= {LONGEST_DRAFT} a round", f"drafted * 1e0 <= rounds * {LONGEST_DRAFT}e0"),
        ("sum of accepted_per_pos = accepted", "accepted_per_pos_sum = accepted"),
        ("accepted_per_pos >= 0", "accepted_per_pos_min >= 0"),
        ("accepted_per_pos does not increase", "accepted_per_pos_falls"),
        ("accepted_per_pos <= rounds", "accepted_per_pos_max <= rounds"),
        ("ts_start <= ts_end", "ts_start <= ts_end"),
        ("kv_cache_usage <= 1", "kv_cache_usage <= 1"),
        ("rounds_basis is known", f"rounds_basis in {_BASES}"),
        ("counts_basis is known", f"counts_basis in {_BASES}"),
        ("time_basis is known", "time_basis in ('sum', 'sample', 'mean')"),
    ),
    "requests": (
        ("accepted <= drafted", "accepted <= drafted"),
        (f"drafted <= {LONGEST_DRAFT} a round", f"drafted * 1e0 <= rounds * {LONGEST_DRAFT}e0"),
        ("accepted_hist >= 0", "accepted_hist_min >= 0"),
        ("sum of accepted_hist = rounds", "accepted_hist_sum = rounds"),
        ("sum of j * accepted_hist[j] = accepted", "accepted_hist_moment = accepted"),
        ("ts_start <= ts_end", "ts_start <= ts_end"),
        ("ts_start <= ts_first_token", "ts_start <= ts_first_token"),
        ("ts_first_token <= ts_end", "ts_first_token <= ts_end"),
        ("counts_basis is known", f"counts_basis in {_BASES}"),
        ("tpot_basis is known", "tpot_basis in ('logged', 'derived')"),
    ),
    "runs": (("started <= ended", "started <= ended"), ("role is known", "role in ('speculative', 'baseline')")),
}


def _identities(name: str) -> tuple[tuple[str, str], ...]:
    """Numbers are finite and not negative (NaN is the largest number to DuckDB and to polars), then the table's own."""
    rules: list[tuple[str, str]] = []
    for column in table(name).columns:
        if column.name in NOT_READ:
            continue
        if column.arrow in ("int32", "int64"):
            rules.append((f"{column.name} >= 0", f"{column.name} >= 0"))
            if column.arrow == "int64":
                rules.append((f"{column.name} <= 1e15", f"{column.name} <= {LONGEST_US}"))
        elif column.name == "weight":
            low, high = _WEIGHTS
            rules.append((f"{low} <= weight <= {high}", f"weight >= {low} and weight <= {high}"))
        elif column.arrow == "double":
            rules.append((f"{column.name} >= 0", f"{column.name} >= 0"))
            rules.append((f"{column.name} <= 1e15", f"{column.name} <= {LONGEST_US}"))
    if "num_speculative_tokens" in table(name).names:
        rules.append((f"num_speculative_tokens <= {LONGEST_DRAFT}", f"num_speculative_tokens <= {LONGEST_DRAFT}"))
    if "top_p" in table(name).names:
        rules.append(("top_p <= 1", "top_p <= 1"))
    return (*rules, *_OWN[name])


# Table -> (name, SQL boolean that must hold or be NULL), over the columns of the table and its LIST_FACTS.
IDENTITIES: Mapping[str, Sequence[tuple[str, str]]] = {name: _identities(name) for name in (*FACTS, "runs")}


# What follows from the columns of the good rows of a source (SCHEMA.md: a logged tpot is used only without its parts).
# All of a table are taken at once: each sees the row as it was read.
DERIVED: Mapping[str, Mapping[str, str]] = {
    "rounds": {
        # The batch says it exactly, also where only some of its requests are logged; else the rows of the step do.
        "step_share": "case when step_share is null and batch_size > 0 then 1e0 / batch_size "
        "when step_share is null and step_id is not null then "
        "1e0 / count(*) over (partition by engine, run_id, replica, step_id) else step_share end",
    },
    "requests": {
        "tpot_basis": "case when decode_us is not null and output_tokens > 1 then 'derived' "
        "when tpot_us is not null then 'logged' end",
        "tpot_us": "case when decode_us is not null and output_tokens > 1 then decode_us * 1e0 / (output_tokens - 1) "
        "else tpot_us end",
    },
}


def kind_of(value: Mapping[str, Any]) -> str | None:
    """Which canonical table a record is meant for, or None when it is no record of ours."""
    word = value.get("record")
    if isinstance(word, str):
        return KINDS.get(word)
    word = value.get("table")
    if isinstance(word, str) and word in KINDS:
        return KINDS[word]
    keys = {key for key, cell in value.items() if cell is not None}
    for kind, needed in KIND_RULES:
        if all(not some.isdisjoint(keys) for some in needed):
            return KINDS[kind]
    return None
