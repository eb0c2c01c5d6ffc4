"""Lines that are read by their shape give what the regular expressions of `lines` give, line by line."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.engines.base import Parsed
from tracelens.engines.vllm import lines, shapes

PREFIXES = (
    "(APIServer pid=812) INFO 04-01 00:00:09 [loggers.py:271] ",
    "(EngineCore_DP0 pid=7) WARNING 11-30 23:59:59 [metrics.py:9] ",
    "(VllmWorker rank=1 pid=77) INFO 04-01 00:00:00 [loggers.py:271] ",
    "INFO 04-01 12:00:00 [loggers.py:271] ",
    "INFO 04-01 12:00:00 metrics.py:271] ",
    "> INFO 04-01 12:00:00 [a.py:1] ",
    "",
)
FIGURES = st.one_of(
    st.integers(0, 10**17).map(str), st.integers(0, 99).map(str), st.floats(0, 5000).map(lambda x: f"{x:.2f}"),
    st.floats(0, 9).map(lambda x: f"{x:.3f}"), st.sampled_from(["nan", "-1.5", "1e+06", "0.1234567890123", "7.", ""]),
)  # fmt: skip
COUNTS = st.one_of(
    st.integers(0, 10**16).map(str), st.integers(0, 9999).map(str), st.sampled_from(["nan", "1.5", "-3"])
)
RATES = st.lists(st.one_of(st.floats(0, 1).map(lambda x: f"{x:.3f}"), FIGURES), max_size=5).map(", ".join)


@st.composite
def messages(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        parts = [
            f"Mean acceptance length: {draw(FIGURES)}", f"Accepted throughput: {draw(FIGURES)} tokens/s",
            f"Drafted throughput: {draw(FIGURES)} tokens/s", f"Accepted: {draw(COUNTS)} tokens",
            f"Drafted: {draw(COUNTS)} tokens", f"Per-position acceptance rate: {draw(RATES)}",
            f"Avg Draft acceptance rate: {draw(FIGURES)}%",
        ]  # fmt: skip
        head = "SpecDecoding metrics: "
    else:
        parts = [
            f"Avg prompt throughput: {draw(FIGURES)} tokens/s", f"Avg generation throughput: {draw(FIGURES)} tokens/s",
            f"Running: {draw(COUNTS)} reqs", f"Waiting: {draw(COUNTS)} reqs", f"GPU KV cache usage: {draw(FIGURES)}%",
        ]  # fmt: skip
        head = draw(st.sampled_from(["Engine 000: ", "Engine 12: ", "2 Engines Aggregated: ", ""]))
    kept = [part for part in parts if draw(st.integers(0, 9))]
    return head + ", ".join(kept)


@st.composite
def records(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(PREFIXES)) + draw(messages())
    if not draw(st.integers(0, 5)):
        text = text[: draw(st.integers(0, len(text)))]
    return text + draw(st.sampled_from(["", "", "", " ", "] ", " \u0664", " " + PREFIXES[0] + "x"]))


def regular(counts: list[int], rates: list[int], stamp: int) -> str:
    """A line as the engine prints it."""
    accepted, drafted = counts
    told = ", ".join(f"{rate / 1000:.3f}" for rate in rates)
    return (
        f"(APIServer pid=812) INFO 04-01 00:{stamp:02d}:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance "
        f"length: {1 + sum(rates) / 1000:.2f}, Accepted throughput: {accepted / 10:.2f} tokens/s, Drafted throughput: "
        f"{drafted / 10:.2f} tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance "
        f"rate: {told}, Avg Draft acceptance rate: 50.0%"
    )


REGULAR = st.builds(
    regular, st.lists(st.integers(0, 99_999), min_size=2, max_size=2),
    st.lists(st.integers(0, 2100), min_size=1, max_size=7), st.integers(0, 59),
)  # fmt: skip


def frame_of(texts: list[str], process: str | None) -> pl.DataFrame:
    none = pl.lit(None, pl.String)
    frame = pl.DataFrame(
        {"line": range(1, len(texts) + 1), "offset": [7 * i for i in range(len(texts))], "text": texts}
    )
    frame = frame.cast({"line": pl.Int64, "offset": pl.Int64})
    return frame.with_columns(stamp=none, stream=none, process=pl.lit(process, pl.String))


def rows_of(parsed: Parsed) -> dict[str, list[dict[str, object]]]:
    found = {}
    for surface, parts in parsed.frames.items():
        whole = pl.concat(parts, how="diagonal_relaxed").sort("line", maintain_order=True)
        found[surface] = whole.select(sorted(whole.columns)).rows(named=True)
    return found


@given(st.lists(st.one_of(records(), REGULAR), min_size=1, max_size=12), st.sampled_from([None, "vllm 1"]))
def test_by_shape_as_line_by_line(texts: list[str], process: str | None) -> None:
    frame = frame_of(texts, process)
    with pytest.MonkeyPatch.context() as patch:
        slow = lines.parse(frame)
        patch.setattr(shapes, "SMALLEST", 0)
        patch.setattr(shapes, "_NEW", 1)
        quick = lines.parse(frame)
    assert rows_of(quick) == rows_of(slow)
    assert quick.claimed == slow.claimed
    assert sorted((r.line, r.reason) for r in quick.rejects) == sorted((r.line, r.reason) for r in slow.rejects)


def test_lines_of_a_busy_log_have_few_shapes() -> None:
    texts = [regular([i % 900, 900 + i % 97], [i % 999, i % 500], i % 60) for i in range(2000)]
    reader = lines._SHAPES
    found, left = reader.read(frame_of(texts, None))
    assert left.height == 0
    assert found["vllm.v1_line"].height == 2000
    assert found["vllm.v1_line"]["accepted"].to_list() == [i % 900 for i in range(2000)]
    assert found["vllm.v1_line"]["process"].unique().to_list() == ["APIServer 812"]


def test_lines_without_a_shape_in_common_are_left() -> None:
    texts = [
        f"Received request {'abcdefghij'[i % 10] * (1 + i // 10)}: params: SamplingParams(n=1)" for i in range(2000)
    ]
    found, left = lines._SHAPES.read(frame_of(texts, None))
    assert found == {}
    assert left.height == 2000
