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

TYPE_CHECKING = False  # as typing's, without the import
if TYPE_CHECKING:
    from tracelens.recorders.clocks import Clock, DeviceClock, HostClock
    from tracelens.recorders.recorder import Recorder, Step
    from tracelens.recorders.settings import Settings

__all__ = ["Clock", "DeviceClock", "HostClock", "Recorder", "Settings", "Step"]

_PLACES = {
    "Clock": "clocks",
    "DeviceClock": "clocks",
    "HostClock": "clocks",
    "Recorder": "recorder",
    "Settings": "settings",
    "Step": "recorder",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is asked for: the plug-in of an engine that is not recorded pays for none."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *__all__})
