"""The generator lives in the room `samples/`, beside what it wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
if str(SAMPLES) not in sys.path:
    sys.path.insert(0, str(SAMPLES))


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES
