"""Labels of SGLang's metrics: which are parts of a name, and which of the ranks that count the same are kept."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracelens.engines.counters import labels_of

# Family (without `_total`) -> label whose value is a part of the name; "" where there is none.
_PARTS: Mapping[str, str] = {
    "sglang:realtime_tokens": "mode",
    "sglang:cuda_graph_passes": "mode",
    "sglang:forward_execution_seconds": "category",
    "sglang:gpu_execution_seconds": "category",
    # Streamed and other requests are counted apart in later releases (0.5.23).
    "sglang:generation_tokens": "is_streaming",
    "sglang:prompt_tokens": "is_streaming",
    "sglang:num_requests": "is_streaming",
}
FRONT_END: tuple[str, ...] = (
    "sglang:generation_tokens",
    "sglang:prompt_tokens",
    "sglang:num_requests",
    "sglang:spec_verify_calls",
    "sglang:inter_token_latency_seconds_sum",
    "sglang:inter_token_latency_seconds_count",
)
_GAUGES = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:gen_throughput",
    "sglang:spec_accept_length",
    "sglang:spec_accept_rate",
    "sglang:spec_num_steps",
    "sglang:spec_num_draft_tokens",
)
SCHEDULED: tuple[str, ...] = tuple(name for name in (*_PARTS, *_GAUGES) if name not in FRONT_END)
# With --enable-metrics-for-all-schedulers every tensor-parallel rank counts the same passes.
_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")


def plain(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples whose names hold what labels said (`sglang:realtime_tokens.decode`), one rank a scheduler.

    Args:
        samples: as `MetricsReader.metrics` takes them, of `SCHEDULED` and `FRONT_END`, named with a colon.

    Returns:
        The same columns; labels that told the part, the rank or an empty priority are gone.
    """
    rows = []
    series = samples.select("stream", "name", "labels").unique(maintain_order=True)
    for stream, name, text in series.iter_rows():  # a few dozen a target
        labels = labels_of(text)
        family = name.removesuffix("_total")
        part = _PARTS.get(family)
        named = name
        if part is not None:
            value = labels.pop(part, "" if part == "is_streaming" else None)
            if value is None:
                continue
            value = {"true": "stream", "false": "plain", "": "plain"}.get(value, value)
            named = f"{family}.{value}" + name[len(family) :]
        if not labels.get("priority"):
            labels.pop("priority", None)
        elif family not in FRONT_END:
            continue  # a part of the total that stands beside it
        rank = [int(r) if (r := labels.pop(n, "")).isdecimal() and len(r) < 10 else 0 for n in _RANKS]
        rest = ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted(labels.items()))
        rows.append((stream, name, text, named, rest, *rank))
    kinds = {"stream": pl.String, "name": pl.String, "labels": pl.String, "named": pl.String, "rest": pl.String}
    found = pl.DataFrame(rows, schema={**kinds, **dict.fromkeys(_RANKS, pl.Int64)}, orient="row")
    place = pl.struct(_RANKS).rank("dense").over("stream", "rest")
    found = found.with_columns(_rank=place).filter(
        pl.col("_rank") == pl.col("_rank").min().over("stream", "named", "rest")
    )
    told = samples.join(
        found.select("stream", "name", "labels", "named", "rest"),
        on=("stream", "name", "labels"), how="inner", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    return told.with_columns(name="named", labels="rest").drop("named", "rest")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
