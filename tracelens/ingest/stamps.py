"""Stamps of a file's lines, all of one form, to microseconds in UTC."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracelens.ingest.typed import BARE, MAGNITUDES, ZONED
from tracelens.ingest.walk import Same, Texts, words_at

if TYPE_CHECKING:
    from tracelens.ingest.fast import Shape

_EPOCH = dt.datetime(1970, 1, 1)
# Years of four digits that begin with 1 or 2, as in the patterns.
_FIRST_US, _LAST_US = -30_610_224_000_000_000, 32_503_680_000_000_000
_ZONE = re.compile(r"(?:Z|[+-]\d\d:\d\d)$")
_BYTES = 0x0101010101010101


@dataclass(frozen=True, slots=True)
class Stamps:
    """How one key is read: texts of one pattern, or numbers in one range.

    Attributes:
        text: an example with 0 for each digit before its zone; empty for numbers.
        zone: where the zone begins.
        zoned: the texts name a zone.
        low, high: range of numbers.
        factor: of numbers, to microseconds.
    """

    text: str
    zone: int
    zoned: bool
    low: float = 0.0
    high: float = 0.0
    factor: float = 1.0

    @classmethod
    def of(cls, key: str, example: Any, factor: float | None, shape: Shape) -> Stamps | None:
        """How a key is read whose value in some line is `example`; None where that is no rule.

        Args:
            key: the key.
            example: its value in one line.
            factor: of numbers, to microseconds; None goes by their magnitude.
            shape: what the first lines say.
        """
        if isinstance(example, str):
            if key not in shape.texts or re.match(ZONED if shape.zoned else BARE, example) is None:
                return None
            zone = _ZONE.search(example) if shape.zoned else None
            end = len(example) if zone is None else zone.start()
            return cls(re.sub(r"\d", "0", example[:end]) + example[end:], end, shape.zoned)
        if key not in shape.ranges:
            return None
        low, high = shape.ranges[key]
        return cls("", 0, False, low, high, factor or next(f for limit, f in MAGNITUDES if low < limit))

    def read(self, value: Any) -> tuple[Any, Any]:
        """Microseconds since 1970, and which values are stamps."""
        if isinstance(value, Same):
            return self._one(value.value)
        if self.text:
            return self._texts(value)
        if isinstance(value, Texts):
            value = value.arrow().cast(pa.float64()).to_numpy()
        good = (value >= self.low) & (value <= self.high)
        # Half a microsecond goes to the even side, as Python's round has it.
        return np.rint(np.where(good, value, self.low) * self.factor).astype(np.int64), good

    def _one(self, value: Any) -> tuple[Any, Any]:
        if not self.text:
            cells, good = self.read(np.array([value], np.float64))
            return Same(int(cells[0])), good
        stamp = _parsed(value, self.zoned)
        return Same(0 if stamp is None else stamp), np.array([stamp is not None])

    def _texts(self, value: Texts) -> tuple[Any, Any]:
        good = self._of_pattern(value)
        texts = value.arrow()
        if not good.all():
            texts = pa.array(np.where(good, texts.to_numpy(zero_copy_only=False), self._any()), pa.string())
        try:
            stamps = texts.cast(pa.timestamp("us", "UTC" if self.zoned else None)).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:  # the 30th of February
            parsed = [_parsed(t, self.zoned) for t in texts.to_pylist()]
            good = good & np.array([p is not None for p in parsed])
            stamps = np.array([p or 0 for p in parsed], np.int64)
        return stamps, good & (stamps >= _FIRST_US) & (stamps < _LAST_US)

    def _any(self) -> str:
        return "2000-01-01" + self.text[10:]

    def _of_pattern(self, value: Texts) -> Any:
        """Which texts have a digit where the example has one, and the same signs elsewhere."""
        size = len(self.text)
        count = -(-size // 8)
        pattern = self.text.encode()
        digit = bytes(0xFF if i < self.zone and pattern[i] == 0x30 else 0 for i in range(size))
        parts = np.frombuffer(pattern.ljust(8 * count, b"\0"), "<u8")
        digits = np.frombuffer(digit.ljust(8 * count, b"\0"), "<u8")
        inside = np.frombuffer((b"\xff" * size).ljust(8 * count, b"\0"), "<u8")
        left = (words_at(value.buffer, value.starts, count) ^ parts) & inside
        # In the place of a digit its value is left, elsewhere nothing.
        high = np.uint64(_BYTES * 0x80)
        wrong = (left & ~digits) | ((((left & np.uint64(_BYTES * 0x7F)) + np.uint64(_BYTES * 0x76)) | left) & high)
        right = value.ends - value.starts == size
        return right & (wrong == 0).all(axis=1) if wrong.any() else right


def _parsed(text: str, zoned: bool) -> int | None:
    """Microseconds since 1970 of a stamp; None where it is none."""
    if re.match(ZONED if zoned else BARE, text) is None:
        return None
    try:
        stamp = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if stamp.tzinfo is not None:
        stamp = stamp.astimezone(dt.UTC).replace(tzinfo=None)
    return (stamp - _EPOCH) // dt.timedelta(microseconds=1)
