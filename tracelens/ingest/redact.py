"""`--redact-ids`: request ids as keyed hashes, the same for one request on every surface.

The id is brought to the form that a request has everywhere (without vLLM's prefix and suffix) before it is hashed, so
that joins of surfaces, runs and label files work as before; without the salt nobody gets from a hash to an id. Hashed
is the last thing that happens to a row: engines, labels and rules see the id as it was logged.

HMAC-SHA-256 rather than BLAKE2: DuckDB has its parts, so that the fast road writes the same hash.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.lake.salt import VARIABLE, path_of, salt_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens.ingest.options import IngestOptions
    from tracelens.lake.ledger import Ledger

KEPT, REDACTED, MIXED = "kept", "redacted", "mixed"
# 128 bits: two of 10^15 ids meet with a chance of one in 10^8.
HEX = 32
ID, COUNTER = "id-", "counter-"
# Columns that are hashed, by table: an id of a step may be the trace id of a request.
_COLUMNS = {"rounds": frozenset({"request_id", "step_id"}), "requests": frozenset({"request_id"})}
# What `request_key` of queries/views.sql does, for a DuckDB that has no views; a test compares the three.
_KEY = (
    "coalesce(nullif(case when starts_with({id}, 'chatcmpl-') then "
    "regexp_extract({id}, '^chatcmpl-(.*?)(?:-[0-9a-f]{{8}})?$', 1) when starts_with({id}, 'cmpl-') then "
    "regexp_extract({id}, '^cmpl-(.*?)(?:-0)?(?:-[0-9a-f]{{8}})?$', 1) else {id} end, ''), {id})"
)
_IS_COUNTER = r"[0-9]{1,4}"  # is_global_id of queries/views.sql: such an id is one of its process only


@dataclass(frozen=True, slots=True)
class Redaction:
    """How the ids of a lake are hashed.

    Args:
        salt: the key, at least 16 bytes; never shown.
    """

    salt: bytes = field(repr=False)

    @property
    def mark(self) -> str:
        """What the ledger says of a source whose ids were hashed: ids of two marks never match."""
        return "redacted:" + hmac.digest(self.salt, b"tracelens: which salt", sha256).hex()[:8]

    def frame(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a table with hashes in the place of ids."""
        return frame.with_columns(self.series(frame[c]) for c in frame.columns if c in self.columns(name))

    def columns(self, name: str) -> frozenset[str]:
        """Columns of a table that are hashed."""
        return _COLUMNS.get(name, frozenset())

    def series(self, ids: pl.Series, *, are_keys: bool = False) -> pl.Series:
        """Hashes of ids, each hashed once however often it stands there; null stays null.

        Args:
            ids: ids as they were logged, or (`are_keys`) as `labels.request_key` makes them.
        """
        import polars as pl

        from tracelens.ingest.labels import request_key

        own = pl.DataFrame({"id": ids.unique().drop_nulls().cast(pl.String)})
        if not own.height:
            return ids
        key = pl.col("id") if are_keys else request_key(pl.col("id"))
        own = own.with_columns(key=pl.when(key.is_null() | (key == "")).then(pl.col("id")).otherwise(key))
        hashes = [hmac.digest(self.salt, k.encode(), sha256).hex()[:HEX] for k in own["key"].to_list()]
        counter = pl.col("key").str.contains(f"^{_IS_COUNTER}$")
        prefix = pl.when(counter).then(pl.lit(COUNTER)).otherwise(pl.lit(ID))
        own = own.select("id", new=prefix + pl.Series(hashes, dtype=pl.String))
        return pl.DataFrame({"id": ids}).join(own, on="id", how="left", maintain_order="left")["new"].alias(ids.name)

    def sql(self, column: str) -> tuple[str, dict[str, object]]:
        """The same in DuckDB's words: an expression over a text column, and its parameters."""
        key = self.salt if len(self.salt) <= 64 else sha256(self.salt).digest()
        outer, inner = (bytes(b ^ pad for b in key.ljust(64, b"\0")) for pad in (0x5C, 0x36))
        text = _KEY.format(id=column)
        hashed = f"left(sha256($hmac_outer::blob || unhex(sha256($hmac_inner::blob || encode({text})))), {HEX})"
        prefix = f"if(regexp_full_match({text}, '{_IS_COUNTER}'), '{COUNTER}', '{ID}')"
        return f"{prefix} || {hashed}", {"hmac_outer": outer, "hmac_inner": inner}


def redaction_of(lake: Path, options: IngestOptions, known: Ledger) -> Redaction | None:
    """How the next sources of a lake are to be hashed; None keeps their ids.

    A lake with redacted ids stays one without `--redact-ids`, too: who forgets the option lets nothing in.

    Raises:
        InputError: the lake's salt is gone, or is another one.
    """
    marks = known.request_ids() - {KEPT}
    if not marks and not options.redact_ids:
        return None
    return _same(lake, marks, make=not marks)


def redaction_in(lake: Path, known: Ledger) -> Redaction | None:
    """How the ids of a lake were hashed; None where none were.

    Raises:
        InputError: the lake's salt is gone, or is another one.
    """
    marks = known.request_ids() - {KEPT}
    return _same(lake, marks, make=False) if marks else None


def held(known: Ledger) -> str:
    """What a lake holds: `kept`, `redacted` or `mixed` ids."""
    marks = known.request_ids()
    return KEPT if marks <= {KEPT} else MIXED if KEPT in marks else REDACTED


def _same(lake: Path, marks: frozenset[str], *, make: bool) -> Redaction:
    salt = salt_of(lake, make=make)
    if salt is None:
        raise InputError(
            f"the request ids of the lake at {lake} are redacted, and their salt is not here: put it back at "
            f"{path_of(lake)} (mode 600) or set ${VARIABLE}"
        )
    found = Redaction(salt)
    if marks - {found.mark}:
        raise InputError(
            f"the request ids of the lake at {lake} are redacted with another salt than that of ${VARIABLE} or "
            f"{path_of(lake)}: ids would not match; give the same salt, or name another lake with --lake"
        )
    return found
