"""Which file of a lake is broken, where a library says only that some file is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake import journal
from tracelens.lake.place import is_remote

#: What to do about a broken object.
IN_A_BUCKET = (
    "put it back from a copy, or bring back what it held with `tracelens ingest --replace LOG` (once compacted: remove "
    "it, run `tracelens forget --missing`, and ingest the logs again)"
)


@contextmanager
def naming(root: Path) -> Iterator[None]:
    """Work on a lake: where a broken file of it ends that, the error names the file.

    Raises:
        InputError: a file is broken.
    """
    try:
        yield
    except Exception as error:
        broken = named(root, _files(root)) if is_sign(error) else None
        if broken is not None:
            raise broken from error
        raise


def _files(root: Path) -> Mapping[str, str]:
    """The files of a lake by name; of one in a bucket by key, as these are what its owner finds there."""
    files = journal.live(root)
    return {path.rpartition("/lake/")[2]: path for path in files.values()} if is_remote(root) else files


def is_sign(error: Exception) -> bool:
    """Whether an error of DuckDB or Arrow can come of a broken file that it does not name.

    DuckDB names the file in errors of its own kinds; what its Parquet reader stumbles over in a page comes as the plain
    kind, without a name. An OSError of Arrow has no number where the content is at fault.
    """
    import duckdb
    import pyarrow as pa

    if isinstance(error, pa.ArrowException):
        return True
    return type(error) is duckdb.Error or (isinstance(error, OSError) and error.errno is None)


def named(place: str | Path, files: Mapping[str, str]) -> InputError | None:
    """An error that names the first broken file; None where each can be read from its first to its last row.

    Args:
        place: the lake, or "" where the names are paths.
        files: name -> path on this machine.
    """
    found = next((name for name, path in sorted(files.items()) if _is_broken(path)), None)
    if found is None:
        return None
    told = f"{place}/{found}" if place else found
    if isinstance(place, Path) and is_remote(place):  # its manifest names the object: without it nothing could be read
        return InputError(f"{told} can't be read: it is broken; {IN_A_BUCKET}")
    return InputError(
        f"{told} can't be read: it is broken, or not tracelens' own; move it away, and bring back what it held with "
        "`tracelens ingest --replace LOG`, or take out what is left of it with `tracelens forget --missing`"
    )


def _is_broken(path: str) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches():
                pass
    except pa.ArrowException:
        return True
    except OSError as error:
        return error.errno is None
    return False
