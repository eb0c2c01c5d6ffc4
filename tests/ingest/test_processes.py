from __future__ import annotations

import os

import pytest

from tracelens.ingest.processes import shared_cores

THREADS = "POLARS_MAX_THREADS"


@pytest.mark.parametrize(("workers", "threads"), [(1, "8"), (2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_workers_share_the_cores(workers: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv(THREADS, raising=False)
    with shared_cores(workers):
        assert os.environ[THREADS] == threads
    assert THREADS not in os.environ


def test_what_the_user_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "5")
    with shared_cores(4):
        assert os.environ[THREADS] == "5"
    assert os.environ[THREADS] == "5"
