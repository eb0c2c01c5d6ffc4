"""SQL whose time would grow with the square of the rows (DuckDB 2.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import QUERIES

import tracelens

PACKAGE = Path(tracelens.__file__).parent
# `count(…) filter (…) over (… order by …)` goes through the frame of each row anew: 200,000 rows take 6 s where
# `count(case when … then 1 end)` takes 0.1. Parentheses inside up to three deep.
_INNER = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_COUNTED = re.compile(rf"\bcount\s*\({_INNER}\)\s*filter\s*\({_INNER}\)\s*over\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    for path in (*sorted(PACKAGE.rglob("*.py")), *sorted(QUERIES.glob("*.sql"))):
        yield path.name, path.read_text(encoding="utf-8")


def test_no_count_of_a_window_has_a_filter() -> None:
    found = [(name, match[0]) for name, text in texts() for match in _COUNTED.finditer(text)]
    assert found == []
    assert len(list(texts())) > 100


@pytest.mark.parametrize(
    "sql",
    [
        "count(*) filter (not there) over (partition by source order by line)",
        "COUNT(distinct x) FILTER (where (a or (b and c(d)))) over named",
    ],
)
def test_such_a_count_is_found(sql: str) -> None:
    assert _COUNTED.search(sql)
