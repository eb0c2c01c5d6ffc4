"""What holds for all tests: a busy machine makes a property no less true."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
