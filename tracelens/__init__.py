"""tracelens: why speculative decoding is slower in production than its acceptance rate promised.

Importing the package is cheap: DuckDB, polars and pyarrow are loaded by the command that needs them.
"""

__version__ = "0.1.0"
