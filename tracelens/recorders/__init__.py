"""Code that runs inside an engine and writes canonical JSON lines. Imports nothing of the rest of tracelens.

Only the standard library is loaded, so that an engine's start-up and its workers pay nothing for it.

Example:
    >>> from tracelens.recorders import Recorder
    >>> with Recorder("records", engine="my-engine", method="draft_model") as recorder:  # doctest: +SKIP
    ...     with recorder.step() as step:
    ...         with step.draft():
    ...             ...
    ...         with step.target():
    ...             ...
    ...         step.round("request-1", drafted=4, accepted=2, emitted=3)
"""

from tracelens.recorders.clocks import Clock, DeviceClock, HostClock
from tracelens.recorders.recorder import Recorder, Step

__all__ = ["Clock", "DeviceClock", "HostClock", "Recorder", "Step"]
