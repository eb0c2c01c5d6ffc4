"""Refusals in bounded memory: the same list, packed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.engines.base import Reject
from tracelens.ingest import refused
from tracelens.ingest.refused import Refused
from tracelens.lake.parquet import write_frames

_REJECT = st.builds(
    Reject,
    line=st.integers(0, 50),
    reason=st.sampled_from(["broken JSON", "identity broken: a <= b", "x" * 300]),
    surface=st.sampled_from([None, "generic.round"]),
    offset=st.one_of(st.none(), st.integers(0, 1 << 40)),
    excerpt=st.sampled_from([None, "…"]),
)


@given(parts=st.lists(st.lists(_REJECT, max_size=12), max_size=4), packed=st.lists(st.booleans(), min_size=4))
def test_it_is_the_list_of_what_was_appended(parts: list[list[Reject]], packed: list[bool]) -> None:
    before = refused._HELD
    refused._HELD = 5
    try:
        found, plain = Refused(), []
        for part, own in zip(parts, packed, strict=False):
            found += Refused(part) if own else part
            plain += part
    finally:
        refused._HELD = before
    assert list(found) == plain
    assert found == plain
    assert not plain or found[-1] == plain[-1]
    assert (len(found), bool(found)) == (len(plain), bool(plain))
    counts = found.counts()
    assert sum(counts.values()) == len(plain)
    assert all(n == sum((r.surface, r.reason) == key for r in plain) for key, n in counts.items())
    ordered = sorted(plain, key=lambda r: r.line)
    assert found.first(3) == [(r.line, r.reason) for r in ordered[:3]]
    rows = [row for frame in found.frames("s") for row in frame.iter_rows(named=True)]
    assert [(r["line"], r["byte_offset"], r["surface"], r["reason"], r["excerpt"], r["source_id"]) for r in rows] == [
        (r.line or None, r.offset, r.surface, r.reason[: refused.REASON], r.excerpt, "s") for r in ordered
    ]
    found.place(np.arange(len(plain), dtype=np.int64))
    assert [r.offset for r in found] == list(range(len(plain)))
    found.clear()
    assert (list(found), len(found)) == ([], 0)


def test_slices_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "_SLICE", 100)
    some = Refused(Reject(i, "broken JSON", None, i * 10) for i in range(1, 1001))
    assert write_frames("rejects", some.frames("s"), tmp_path / "r.parquet") == 1000
    assert pq.read_table(tmp_path / "r.parquet")["line"].to_pylist() == list(range(1, 1001))
    assert write_frames("rejects", Refused().frames("s"), tmp_path / "none.parquet") == 0
    assert not (tmp_path / "none.parquet").exists()


_MANY = """
import re
from tracelens.engines.base import Reject
from tracelens.ingest.refused import Refused
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
import numpy, polars
before = peak()
some = Refused()
for i in range(300_000):
    some.append(Reject(i, "broken JSON: cut off", None, 30 * i))
rows = sum(frame.height for frame in some.frames("s"))
print(rows, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_many_take_few_bytes_each() -> None:
    done = subprocess.run([sys.executable, "-c", _MANY], capture_output=True, text=True, check=True)
    rows, peak = map(int, done.stdout.split())
    assert rows == 300_000
    assert peak < 60


@given(rejects=st.lists(_REJECT, max_size=12), packed=st.integers(0, 12), lines=st.integers(0, 100))
def test_a_list_that_comes_from_another_process(rejects: list[Reject], packed: int, lines: int) -> None:
    sent = Refused(rejects[:packed])
    sent._pack()
    sent.extend(rejects[packed:])
    got = pickle.loads(pickle.dumps(sent))
    assert got == rejects
    got.shift(lines)
    assert got == [replace(r, line=r.line + lines) for r in rejects]
    got.append(rejects[0] if rejects else Reject(1, "x"))
    assert len(got) == len(rejects) + 1
