"""What benchmarks/fuzz.py fuzzes, tried for a moment without its fuzzer: seeds and damaged ones of every target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

fuzz = pytest.importorskip("benchmarks.fuzz", reason="benchmarks are beside the package, not in it")


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_every_target_has_seeds_and_takes_them(tmp_path: Path, name: str) -> None:
    assert len(fuzz.TARGETS[name].seeds()) >= 3
    fuzz.without_guidance(name, 2, tmp_path)


def test_mutants_are_of_both_kinds_and_no_larger_than_a_case() -> None:
    seeds = [b'{"drafted": 3}\n' * 20, b"x" * 90]
    made = [fuzz.mutated(seeds[0], i, seeds, lambda data, most: b"by libFuzzer") for i in range(40)]
    assert 5 < made.count(b"by libFuzzer") < 35
    assert made == [fuzz.mutated(seeds[0], i, seeds, lambda data, most: b"by libFuzzer") for i in range(40)]
    assert max(map(len, made)) <= fuzz.LARGEST


def test_what_a_run_came_to(tmp_path: Path) -> None:
    """Figures are those of the target's own book and of libFuzzer's last words."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a").write_bytes(b"x")
    book = fuzz._Book(tmp_path)
    (tmp_path / "kept").mkdir()

    def broken(data: bytes) -> None:
        if b"!" in data:
            raise ZeroDivisionError("!")

    for data in (b"a" * 5000, b"!", b"!!"):
        book.tried(broken, data)
    said = "#9 NEW cov: 12 ft: 3\n#20 cov: 15 ft: 5\nstat::number_of_executed_units: 20\nERROR: libFuzzer: timeout\n"
    row = fuzz.told("x", tmp_path, said)
    assert (row.cases, row.edges, row.inputs, row.hangs) == (20, 15, 1, 1)
    assert list(row.crashes.values()) == ["!"]
    assert row.slowest > 0
    assert (tmp_path / "kept" / "crash-1").read_bytes() == b"!"
    assert json.loads((tmp_path / "book.json").read_text())["cases"] >= 1
