"""A folder to record into, named in the environment as a site names it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACELENS_RECORD", str(tmp_path / "records"))
    monkeypatch.setenv("TRACELENS_RECORD_RUN", "run-1")
    return tmp_path / "records"
