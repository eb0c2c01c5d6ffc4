"""The damage and the harness of benchmarks/faults.py, in small: what it counts as survived is what survived."""

from __future__ import annotations

import random
from pathlib import Path

import canaries
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are beside the package, not in it"
)


def test_damage_is_the_same_each_time_and_of_many_kinds() -> None:
    from benchmarks.faults import damaged

    seed = b'{"record":"round","request_id":"r-1","drafted":3,"accepted":2}\n' * 8
    one, again = ([damaged(seed, [seed], random.Random(i)) for i in range(60)] for _ in range(2))
    assert one == again
    assert len(set(one)) > 55
    assert any(len(d) > 5000 for d in one)
    assert any(len(d) < len(seed) / 2 for d in one)
    assert damaged(b"", [b""], random.Random(1)) is not None


def test_damaged_samples_are_read_to_their_end(tmp_path: Path) -> None:
    from benchmarks.faults import SEED, _staged, damaged

    seeds = [canaries.unpacked(p)[:4000] for p in canaries.corpus()[::2] if "surfaces" in p.parts]
    chance = random.Random(SEED)
    for i, seed in enumerate(seeds):
        (tmp_path / "case.log").write_bytes(damaged(seed, seeds, chance))
        _staged(tmp_path / "case.log", tmp_path / "staged", quick_road=i % 3 == 0)
        assert not (tmp_path / "staged").exists()


def test_what_counts_as_survived() -> None:
    from benchmarks.faults import _is_whole

    answer = {"whole": True, "rows": "abc", "staged": []}
    assert _is_whole(answer, "abc")
    for change in ({"whole": False}, {"rows": "x"}, {"staged": ["left"]}):
        assert not _is_whole(answer | change, "abc")


def test_the_table_says_at_which_steps() -> None:
    from benchmarks.faults import _EVERY, which_steps

    assert which_steps(False) == "every step"
    assert which_steps(True) == f"every {_EVERY[True]}th step"
    assert _EVERY[False] == 1


def test_a_fault_of_a_reader_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of tests an ingest makes a refused record of it, and goes on."""
    from benchmarks import faults
    from tracelens.ingest.guard import RAISE, guarded

    def broken(*given: object, **more: object) -> None:
        with guarded("x", []):
            raise ZeroDivisionError

    monkeypatch.delenv(RAISE)
    monkeypatch.setattr(faults, "_CASES", (5, 3))
    monkeypatch.setattr(faults, "_staged", broken)
    [row] = faults.fuzzed(tmp_path, True)
    assert (row.done, row.outcome.split(";")[0]) == ("3 cases", "3 crashes or hangs")
    monkeypatch.setenv(RAISE, "1")  # for what comes behind
