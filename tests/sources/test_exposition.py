"""Prometheus text: samples as the client library reads them, scrapes told apart, stamps from wherever they are."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tracelens.sources.exposition import Scrapes, label, looks
from tracelens.sources.scrape_stamps import stamp_of
from tracelens.sources.stream import Block

DATA = Path(__file__).parent.parent / "data"
PAGE = """\
# HELP vllm:a_total Number of a.
# TYPE vllm:a_total counter
vllm:a_total{engine="0",model_name="m"} 3.0
vllm:h_bucket{engine="0",le="0.1"} 1.0
vllm:h_count{engine="0"} 2.0
python_info{version="3.11"} 1.0
"""


def blocks(text: str | bytes, cuts: Sequence[int] = ()) -> list[Block]:
    """The text as blocks of whole lines; `cuts` are numbers of lines a block."""
    data = text.encode() if isinstance(text, str) else text
    lines = data.splitlines(keepends=True) if b"\r" not in data else re.findall(rb"[^\n]*\n|[^\n]+", data)
    out: list[Block] = []
    line, offset, at = 1, 0, 0
    for size in [*cuts, len(lines)]:
        piece = b"".join(lines[at : at + size])
        if piece:
            out.append(Block(piece, line, offset))
        line, offset, at = line + len(lines[at : at + size]), offset + len(piece), at + size
    return out


def read(text: str | bytes, cuts: Sequence[int] = (), prefixes: Sequence[str] = ("vllm:",)) -> pl.DataFrame:
    scrapes = Scrapes(prefixes)
    frames = [scrapes.feed(block) for block in blocks(text, cuts)]
    return pl.concat([*frames, scrapes.finish()]).sort("line", maintain_order=True)


def stamps(text: str, cuts: Sequence[int] = ()) -> list[tuple[int | None, str | None]]:
    return read(text, cuts).select("scrape", "stamp").unique(maintain_order=True).rows()


def test_a_page() -> None:
    assert read(PAGE).rows(named=True) == [
        {"line": 3, "scrape": 0, "stamp": None, "stream": None, "name": "vllm:a_total",
         "labels": 'engine="0",model_name="m"', "value": 3.0},
        {"line": 5, "scrape": 0, "stamp": None, "stream": None, "name": "vllm:h_count", "labels": 'engine="0"',
         "value": 2.0},
    ]  # fmt: skip


def test_no_prefix_takes_nothing() -> None:
    assert read(PAGE, prefixes=()).height == 0
    assert read(PAGE).schema == read(PAGE, prefixes=()).schema == read("\n\n").schema


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("vllm:a 1", 1.0),
        ("vllm:a\t1e+06 ", 1e6),
        ("vllm:a{} .5", 0.5),
        ('vllm:a{ x = "y" , } 5.', 5.0),
        ('vllm:a{x="}"}1', 1.0),
        ("vllm:a +Inf", math.inf),
        ("vllm:a -Inf", -math.inf),
        ('vllm:a 1.7e3 # {trace_id="x"} 0.67 1520879607.789', 1700.0),
        ("vllm:a 3\r", 3.0),
    ],
)
def test_forms_of_a_sample(text: str, value: float) -> None:
    assert read(text + "\n")["value"].to_list() == [value]


def test_not_a_number() -> None:
    assert math.isnan(read("vllm:a NaN\n")["value"][0])


def test_what_is_broken_is_counted_with_its_place() -> None:
    text = PAGE + 'vllm:b{engine="0"\nvllm:c\nvllm:d1\nvllm:e{x="1"} one\nother broken\n'
    scrapes = Scrapes(["vllm:"])
    for block in blocks(text, [4]):
        scrapes.feed(block)
    lines = text.encode().splitlines(keepends=True)
    assert [(p.line, p.offset) for p in scrapes.problems] == [(n, sum(map(len, lines[: n - 1]))) for n in (7, 8, 9, 10)]
    assert {p.reason for p in scrapes.problems} == {"broken sample: no name, labels and number"}
    assert all(p.excerpt is None for p in scrapes.problems)


def test_labels_are_read_one_by_one() -> None:
    text = r'vllm:a{foo_engine="9",note=",engine=",b="x\\n\"y\n",engine="7"} 1' + "\n"
    frame = read(text).select(label(n).alias(n) for n in ("engine", "note", "b", "foo_engine", "none"))
    assert frame.row(0) == ("7", ",engine=", 'x\\n"y\n', "9", None)


def test_a_dump_of_a_server_names_the_metric_among_the_labels() -> None:
    text = (
        '{__name__="vllm:a_total",engine="0",instance="h:1"} 3 1795953254992\n'
        '{__name__="vllm:a_total",engine="0",instance="h:1"} 4 1795953269992\n'
        '{__name__="up",engine="0"} 1 1795953254992\n'
        '{__name__="vllm:h_bucket",le="1"} 1 1795953254992\n'
        '{cluster="x",__name__="vllm:b"} 5 1795953254992\n'
    )
    assert looks(text.encode())
    assert read(text).select("line", "scrape", "stamp", "name", "labels", "value").rows() == [
        (1, None, "1795953254992", "vllm:a_total", 'engine="0",instance="h:1"', 3.0),
        (2, None, "1795953269992", "vllm:a_total", 'engine="0",instance="h:1"', 4.0),
        (5, None, "1795953254992", "vllm:b", 'cluster="x"', 5.0),
    ]


def test_stamps_of_samples_may_be_seconds_with_an_exponent() -> None:
    text = "vllm:a 1 1795953254.992\nvllm:a 2 1.795953269992e+09\nvllm:a 3 99\n"
    assert read(text)["stamp"].to_list() == ["1795953254.992", "1795953269.992", "99"]
    assert read(text)["scrape"].to_list() == [None] * 3


# -- scrapes ------------------------------------------------------------------------------------------------------


def test_a_series_that_comes_again_begins_a_scrape() -> None:
    assert read("vllm:a 1\nvllm:b 1\nvllm:b 2\nvllm:a 2\nvllm:a 3\n")["scrape"].to_list() == [0, 0, 1, 1, 2]


def test_so_does_the_end_of_a_page_and_a_line_with_a_time() -> None:
    text = "vllm:a 1\n# EOF\nvllm:b 1\n# EOF\n# t=1795953254\nvllm:c 1\nvllm:a 2\n"
    assert read(text)["scrape"].to_list() == [0, 1, 2, 2]


def test_stamps_before_the_scrapes() -> None:
    text = f"# TRACELENS-SCRAPE unix=1795953254.992 tag=begin\n{PAGE}# 2026-11-29T11:41:57Z\n{PAGE}"
    assert stamps(text) == [(0, "1795953254.992"), (1, "2026-11-29T11:41:57Z")]


def test_stamps_behind_the_scrapes() -> None:
    text = f"{PAGE}1795953254\n{PAGE}1795953269\n{PAGE}"
    assert stamps(text) == [(0, "1795953254"), (1, "1795953269"), (2, None)]


def test_the_first_scrapes_may_have_no_stamp() -> None:
    text = f"{PAGE}{PAGE}1795953254\n{PAGE}"
    assert stamps(text) == [(0, None), (1, None), (2, "1795953254")]


def test_a_page_that_was_fetched_twice_has_the_time_of_both() -> None:
    assert stamps(f"1795953254\n{PAGE}{PAGE}1795953269\n{PAGE}") == [
        (0, "1795953254"), (1, "1795953254"), (2, "1795953269"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        ("# TRACELENS-SCRAPE unix=1795953254.992 tag=begin", "1795953254.992"),
        ("# t=1795956228.973417864", "1795956228.973417864"),
        ("# 2026-11-29T11:41:57Z", "2026-11-29T11:41:57Z"),
        ("### scraped at 2026-11-29 11:41:57.25 +01:00 by cron", "2026-11-29T11:41:57.25+01:00"),
        ("2026-11-29T11:41:57,123456+00:00", "2026-11-29T11:41:57.123456+00:00"),
        ("2026-11-29 11:41:57", "2026-11-29T11:41:57"),
        ("Sun Nov 29 11:41:57 UTC 2026", "2026-11-29T11:41:57Z"),
        ("Sun Nov  1 11:41:57 PM CET 2026", "2026-11-01T23:41:57"),
        ("Sun Nov 29 12:41:57 AM UTC 2026", "2026-11-29T00:41:57Z"),
        ("Date: Sun, 29 Nov 2026 11:41:57 GMT", "2026-11-29T11:41:57Z"),
        ("1795953254", "1795953254"),
        (" 1795953254123 ", "1795953254123"),
        ("# HELP x of 2026-11-29T11:41:57Z", None),
        ("# TYPE x counter", None),
        ("# EOF", None),
        ("# scrape 2 (after a restart)", None),
        ("# scrape number 1795953254x", None),
        ("12", None),
        ("2026-11-29", None),
        ("INFO 2026-11-29 11:41:57 started", None),
        ("Sun Foo 29 11:41:57 UTC 2026", None),
    ],
)
def test_lines_that_tell_a_time(line: str, stamp: str | None) -> None:
    assert stamp_of(line) == stamp
    if not line.startswith(("INFO", "2026-11-29 by")):
        assert stamps(f"{line}\nvllm:a 1\n") == [(0, stamp)]


# -- what is Prometheus text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        PAGE,
        "# t=1795956228.97\n" + PAGE,
        "HTTP/1.1 200 OK\ncontent-type: text/plain\n\n" + PAGE * 3,
        "vllm:num_requests_running 3\n",
        'up{job="x"} 1\n',
        "# TYPE a counter\n",
        "process_open_fds_total 3\nother_total 4\n",
        "\r\n".join(PAGE.splitlines()),
    ],
)
def test_text_that_is(head: str) -> None:
    assert looks(head.encode())


@pytest.mark.parametrize(
    "head",
    [
        "",
        "\n\n",
        "word 3\nother 4\n",
        "1795953254\n1795953255\n",
        "# a comment\n",
        '{"drafted": 4, "accepted": 3}\n',
        '{"metric":{"__name__":"vllm:a"},"values":[1],"timestamps":[1]}\n',
        "[]",
        "INFO 05-06 12:00:00 [metrics.py:489] started\n" * 5 + "vllm:a_total 3\n",
        "INFO 05-06 12:00:00 [metrics.py:489] started\n# TYPE vllm:a counter\nvllm:a 3\n" + "INFO x\n" * 5,
        "a,b,c\n1,2,3\n",
    ],
)
def test_text_that_is_not(head: str) -> None:
    assert not looks(head.encode())


# -- properties -------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"vllm:[a-z_]{1,8}[a-z]", fullmatch=True).filter(lambda n: not n.endswith("_bucket"))
VALUES = st.one_of(st.floats(width=64), st.integers(-(10**6), 10**15).map(float))
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
LABELS = st.dictionaries(st.sampled_from(["engine", "model_name", "position", "x"]), TEXT, max_size=3)


def shown(value: float) -> str:
    return (
        "NaN" if math.isnan(value) else "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(value)
    )


def labelled(labels: dict[str, str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
    return ",".join(f'{k}="{v.translate(escapes)}"' for k, v in labels.items())


def comparable(samples: Sequence[tuple[str, dict[str, str], float]]) -> list[Any]:
    return [(name, labels, "NaN" if math.isnan(value) else value) for name, labels, value in samples]


def ours(text: str) -> list[Any]:
    frame = read(text).with_columns(label(n).alias(f"l.{n}") for n in ("engine", "model_name", "position", "x"))
    rows = frame.rows(named=True)
    return comparable(
        [(r["name"], {k[2:]: v for k, v in r.items() if k[:2] == "l." and v is not None}, r["value"]) for r in rows]
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NAMES, LABELS, VALUES), max_size=8))
@example([("vllm:a", {"x": '\\n"}{,engine="'}, 1.0)])
def test_samples_are_what_the_client_library_reads(samples: list[tuple[str, dict[str, str], float]]) -> None:
    text = "".join(f"{name}{{{labelled(labels)}}} {shown(value)}\n" for name, labels, value in samples)
    theirs = [(s.name, dict(s.labels), s.value) for family in parse_text(text) for s in family.samples]
    assert ours(text) == comparable(theirs) == comparable(samples)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(TEXT, st.floats(0, 1e9)), max_size=4))
def test_pages_of_the_client_library(points: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    counter = Counter("vllm:tokens", 'of "x"\n', ["engine"], registry=registry)
    histogram = Histogram("vllm:latency", "of y", ["engine"], registry=registry)
    gauge = Gauge("vllm:running", "of z", registry=registry)
    for engine, value in points:
        counter.labels(engine).inc(value)
        histogram.labels(engine).observe(value)
        gauge.set(value)
    openmetrics = partial(generate_openmetrics, escaping="allow-utf-8")
    for generate, parse in ((generate_latest, parse_text), (openmetrics, parse_openmetrics)):
        text = generate(registry).decode()
        theirs = [(s.name, dict(s.labels), s.value) for family in parse(text) for s in family.samples]
        assert ours(text) == comparable([s for s in theirs if not s[0].endswith("_bucket")])
        assert looks(text.encode())


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.sampled_from(["vllm:a 1", "vllm:b 2", "vllm:c 3", "# EOF", "1795953254", "# t=1795953269", "x 1", ""]),
        max_size=14,
    ),
    st.lists(st.integers(1, 5), max_size=5),
)
@example(["vllm:a 1", "1795953254", "vllm:a 1"], [1, 1])
@example(["vllm:a 1", "vllm:a 1", "1795953254", "vllm:b 1"], [1, 1, 1])
def test_where_blocks_are_cut_makes_no_difference(lines: list[str], cuts: list[int]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    assert read(text, cuts).rows() == read(text).rows()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.one_of(st.binary(max_size=30), st.sampled_from([b'vllm:a{x="', b"vllm:", b'{__name__="vllm:'])), max_size=6
    )
)
def test_junk_never_raises(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    looks(data)
    frame = read(data, [1, 2])
    assert frame.filter(~pl.col("name").str.starts_with("vllm:")).height == 0


# -- real pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DATA.glob("vllm/metrics-*.prom.gz")), ids=lambda p: p.name.split(".")[0])
def test_real_scrapes_are_what_the_client_library_reads(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert looks(text.encode()[: 1 << 16])
    pages = re.split(r"^# TRACELENS-SCRAPE unix=(\S+).*\n", text, flags=re.M)[1:]
    theirs = [
        (i, stamp, s.name, s.value)
        for i, (stamp, page) in enumerate(zip(pages[::2], pages[1::2], strict=True))
        for family in parse_text(page)
        for s in family.samples
        if s.name.startswith("vllm:") and not s.name.endswith("_bucket")
    ]
    assert sorted(read(text, [1000] * 3).select("scrape", "stamp", "name", "value").rows()) == sorted(theirs)


def test_real_pages_of_llama_cpp() -> None:
    data = (DATA / "llama-cpp" / "metrics_series.txt").read_bytes()
    assert looks(data)
    found = read(data, prefixes=["llamacpp:"])
    assert found.height == sum(line.startswith(b"llamacpp:") for line in data.splitlines())
    stamps = re.findall(r"^# t=(\S+)", data.decode(), flags=re.M)
    assert found["stamp"].unique(maintain_order=True).to_list() == stamps


@pytest.mark.parametrize("stamp", ["9e999", "1.79e", "1-2", "1e400", "--1", "9" * 30, "1.2.3"])
def test_a_sample_whose_own_stamp_is_no_time_is_refused(stamp: str) -> None:
    lines = [f'vllm:a{{e="0"}} {n} {1_795_953_254_000 + n}' for n in range(5)]
    lines[3] = f'vllm:a{{e="0"}} 3 {stamp}'
    scrapes = Scrapes(["vllm:"])
    data = ("\n".join(lines) + "\n").encode()
    frame = scrapes.feed(Block(data, 1, 0))
    assert frame["value"].to_list() == [0, 1, 2, 4]
    assert frame["scrape"].null_count() == frame["stamp"].len() - frame["stamp"].null_count() == 4
    assert scrapes.finish().height == 0
    assert [p.line for p in scrapes.problems] == [4]
