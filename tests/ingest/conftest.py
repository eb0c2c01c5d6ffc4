from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of commits: nobody pulls the plug here, so the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
