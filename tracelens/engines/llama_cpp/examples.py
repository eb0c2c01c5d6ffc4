"""What llama-speculative and llama-speculative-simple print at their end, as one request each.

`decoded  673 tokens in   12.132 seconds, ...` (`generated` in 2023), then `n_draft   = 8` (K), `n_drafted = 730`,
`n_accept  = 526`. The time begins with the first sampled token; in the simple program with its first round, which makes
TPOT too long by that round's share. How many of the tokens rounds gave differs, too, so `emitted` is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.llama_cpp.surfaces import EXAMPLE
from tracelens.engines.rows import frame_of

_SCHEMA: Mapping[str, Any] = {
    "source_line": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "output_tokens": pl.Int64,
    "decode_us": pl.Int64, "num_speculative_tokens": pl.Int32,
}  # fmt: skip


def requests(found: pl.DataFrame, source_id: str, rejects: list[Reject]) -> pl.DataFrame:
    """Canonical requests.

    Args:
        found: lines of the surface, in file order: `line`, `kind`, `count`, `seconds`.
        source_id: for the names of the requests.
        rejects: gets counts without their other half, and those that break an identity.
    """
    rows: list[dict[str, int | None]] = []
    open_: dict[str, int | None] = {}
    for line, kind, count, seconds in found.select("line", "kind", "count", "seconds").iter_rows():
        if kind == "decoded":
            open_ = {"output_tokens": count, "decode_us": round(seconds * 1e6)}
        elif kind == "n_draft":
            open_["num_speculative_tokens"] = count if 0 < count < 2**31 else None
        elif kind == "n_drafted":
            open_ |= {"drafted": count, "source_line": line}
        else:
            row, open_ = open_, {}
            if row.get("drafted") is None:
                rejects.append(Reject(line, "n_accept without n_drafted", EXAMPLE))
            elif count > (row["drafted"] or 0):
                rejects.append(Reject(line, "accepted <= drafted does not hold", EXAMPLE))
            else:
                rows.append(row | {"accepted": count, "source_line": line})
    frame = frame_of(rows, _SCHEMA)
    timed = (pl.col("output_tokens") > 1) & (pl.col("decode_us") > 0)
    return frame.with_columns(
        surface=pl.lit(EXAMPLE),
        counts_basis=pl.lit("logged"),
        ts_basis=pl.lit("none"),
        tpot_us=pl.when(timed).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)),
        tpot_basis=pl.when(timed).then(pl.lit("derived")),
        request_id=pl.format("{}#{}", pl.lit(source_id), "source_line"),
        run_key=pl.lit(0, pl.Int64),
    )
