from __future__ import annotations

from pathlib import Path

import pytest

from .lake import make


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("lake"))


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACELENS_LAKE", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
