"""A number of any length in any place of any record is no fault: Python reads 4300 digits, a double ends at 308."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import canaries
import pytest

from tracelens.errors import InputError
from tracelens.ingest.labels import read_rules

_NUMBER = re.compile(rb"\d+")
_TEXTS = [p for p in canaries.corpus() if p.suffix != ".zip" and ("surfaces" in p.parts or p.name == "trace.log")]


@pytest.mark.parametrize("digits", [400, 4500])
@pytest.mark.long
def test_no_record_is_a_fault(tmp_path: Path, digits: int) -> None:
    fuzz = pytest.importorskip("benchmarks.fuzz", reason="benchmarks are beside the package, not in it")
    act = fuzz._reader(tmp_path)
    for path in _TEXTS:
        lines = canaries.unpacked(path)[:6000].split(b"\n")[:12]
        changed = [
            line[: hit.start()] + b"9" * digits + line[hit.end() :]
            for line in lines
            for hit in islice(_NUMBER.finditer(line), 0, None, max(1, len(_NUMBER.findall(line)) // 12))
        ]
        for at in range(0, len(changed), 150):
            act(b"\n".join(changed[at : at + 150]) + b"\n")


@pytest.mark.parametrize("value", ["9" * 5000, "2026-99-01", "[0, 1" + "0" * 400 + "]", "[0, nan]"])
def test_rules_of_odd_numbers_are_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "tracelens.toml").write_text(f'[[task]]\ntype = "a"\ntemperature = {value}\n')
    with pytest.raises(InputError):
        read_rules(tmp_path / "tracelens.toml")
