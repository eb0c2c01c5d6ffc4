"""tracelens: why speculative decoding is slower in production than its acceptance rate promised.

Importing the package is cheap: DuckDB, polars and pyarrow are loaded by the command or the call that needs them.

Example:
    >>> import tracelens
    >>> tracelens.open("lake").report(by="task_type", run="k5")  # doctest: +SKIP
"""

__version__ = "0.1.0"
__all__ = ["Claim", "InputError", "Lake", "Result", "Rows", "open"]

TYPE_CHECKING = False  # as typing's, without the import
if TYPE_CHECKING:
    from tracelens.analysis.claim import Claim
    from tracelens.api import Lake
    from tracelens.api import open_lake as open
    from tracelens.errors import InputError
    from tracelens.result import Result, Rows

_PUBLIC = {
    "Claim": ("tracelens.analysis.claim", "Claim"),
    "InputError": ("tracelens.errors", "InputError"),
    "Lake": ("tracelens.api", "Lake"),
    "Result": ("tracelens.result", "Result"),
    "Rows": ("tracelens.result", "Rows"),
    "open": ("tracelens.api", "open_lake"),
}


def __getattr__(name: str) -> object:
    """Load a public name when it is asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *__all__})
