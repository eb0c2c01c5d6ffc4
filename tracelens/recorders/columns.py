"""The columns that a recorder may write, and their JSON. Names and meaning: schemas/<table>.json of tracelens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHARED = _words(
    """replica process model draft_model method num_speculative_tokens task_type temperature top_p num_draft_nodes
    weight forced_acceptance"""
)
COLUMNS: Mapping[str, frozenset[str]] = {
    "round": _SHARED
    | _words(
        """request_id round_index step_id step_share batch_size context_len drafted accepted emitted draft_steps
        draft_us target_us sample_us rollback_us repack_us emit_lag_us step_us timing_basis has_prefill is_replay"""
    ),
    "window": _SHARED
    | _words(
        """ts_start_us window_us steps rounds plain_steps rounds_basis counts_basis drafted accepted emitted
        accepted_per_pos draft_us target_us sample_us step_us time_basis round_us rounds_timed preemptions
        generated_tokens prompt_tokens running waiting kv_cache_usage"""
    ),
    "request": _SHARED
    | _words(
        """ts_start_us ts_first_token_us request_id prompt_tokens output_tokens cached_tokens iterations rounds drafted
        accepted emitted accepted_hist draft_us target_us ttft_us decode_us e2e_us queue_us preemptions finish_reason
        error counts_basis"""
    ),
    "run": _words(
        """run_id engine engine_flavour engine_version engine_era model draft_model method num_speculative_tokens
        tensor_parallel data_parallel max_num_seqs role started_us forced_acceptance"""
    ),
}
_LONGEST = 256  # characters of a text, an id among them
_PLAIN = frozenset((str, int, float, bool, type(None)))


def check(kind: str, columns: Mapping[str, object]) -> None:
    """Refuse a name that the table does not have.

    Raises:
        TypeError: an unknown column.
    """
    unknown = columns.keys() - COLUMNS[kind]
    if unknown:
        raise TypeError(f"a {kind} has no column {sorted(unknown)[0]!r}; it has: {', '.join(sorted(COLUMNS[kind]))}")


def copied(columns: dict[str, Any]) -> dict[str, Any]:
    """The same dict, with copies of what its caller may go on to fill (lists, arrays): it is encoded later."""
    for name, value in columns.items():
        if type(value) not in _PLAIN and hasattr(value, "copy"):
            columns[name] = value.copy()
    return columns


def line(kind: str, columns: Mapping[str, object]) -> str:
    """One JSON line.

    What is None or not a finite number, alone or in a list, is left out (not measured); text is cut at 256 characters.

    Raises:
        TypeError, ValueError: a value that JSON has no place for.
    """
    kept: dict[str, object] = {"record": kind}
    for name, value in columns.items():
        plain = _plain(value)
        if plain is not None:
            kept[name] = plain
    return _ENCODER.encode(kept)


def check_values(kind: str, columns: Mapping[str, object]) -> None:
    """Refuse a value that cannot be written.

    Raises:
        TypeError: it says which column.
    """
    for name, value in columns.items():
        try:
            _ENCODER.encode(_plain(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"column {name!r} of a {kind} cannot be recorded: {error}") from None


def quoted(text: str) -> str:
    """The JSON of a text, cut at 256 characters."""
    return json.dumps(_text(text))


def leaf(path: object) -> str | None:
    """A model's name without the folders it lies in: `/srv/models/draft` is `draft`, `org/model` stays."""
    if not isinstance(path, str) or not path:
        return None
    name = path.replace("\\", "/").rstrip("/")
    is_hub = name.count("/") == 1 and not name.startswith(("/", ".", "~"))
    return name if is_hub else name.rpartition("/")[2]


def _text(text: str) -> str:
    """Cut; a lone surrogate, which no reader of JSON takes, becomes a question mark."""
    text = text[:_LONGEST]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _plain(value: object) -> object:
    """What `json` knows, also of numbers and arrays of NumPy and torch; None for what is not a finite number."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        found = [_plain(one) for one in value]
        return None if None in found else found
    as_plain = getattr(value, "tolist", None) or getattr(value, "item", None)
    if as_plain is None:
        raise TypeError(f"{type(value).__name__} has no place in JSON")
    return _plain(as_plain())


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
