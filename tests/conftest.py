"""What holds for all tests: a busy machine makes a property no less true."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("calm", deadline=None)
settings.load_profile("calm")

# A fault of a reader ends a test, and is not counted as a refused record. Worker and child processes inherit it.
os.environ["TRACELENS_RAISE_FAULTS"] = "1"
