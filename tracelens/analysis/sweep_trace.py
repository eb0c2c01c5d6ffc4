"""The trace from which a stratum's other draft lengths are replayed, or the reason why none can be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.figures import Row
from tracelens.model.choice import resampled_sums
from tracelens.model.replay import Runs, passes, replayed
from tracelens.wording import many

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Where clearly more of the drafts inside a request are shorter than K, something sets the length round by round.
MOST_SHORTENED = 0.1
#: Groups of units that are drawn again: enough for an interval, and quick with hundreds of strata.
_GROUPS = 512
#: Below this share of the rounds, what lies outside the replay is not worth a word.
_WORTH_A_WORD = 0.01
#: Below this number of rounds a reader is told that the trace is short.
FEW_ROUNDS = 200
#: The trace is the longest K with this many rounds of more than one request (the default of `run_lengths.sql`), else
#: the longest.
ENOUGH_ROUNDS = 20
#: Effective number of units below which no interval is told, as for every cost: one long request and a short one are
#: fewer than two.
FEWEST_UNITS = 1.5

_OUTSIDE = {
    "tree": "trees were drafted (num_draft_nodes), and a chain of flags cannot tell what a smaller tree would hold",
    "parallel": "the drafter{methods} looks its drafts up or proposes all at once, so a shorter draft is another draft",
    "sampled": "rounds were sampled (weight is not 1), so none is known to follow another",
    "rolled_up": "rounds are rolled up (`tracelens compact`), so their order is gone",
    "no_request": "rounds carry no request id, so their order is not known",
    "no_length": "rounds log no draft length (drafted), only what was accepted",
    "counts": "only histograms, requests or intervals are logged, not single rounds in order",
}
_VARYING = (
    "draft lengths change inside requests ({share:.0%} of the rounds are shorter than K {k}), as a drafter that stops "
    "on its confidence or a schedule by batch size does, so where a draft ended says nothing of a longer one"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Rounds in order of one draft length K, as runs of accepted drafts by group of independent units.

    `runs`, `counts` and `group` have one element a kind of run; `run_tokens`, `token_counts` and `token_group` one a
    number of tokens that a run committed. `tokens` and `plain_rounds` are sums by group. Tokens are those committed;
    where they are not logged (`emitted` is False), accepted drafts and one a pass.
    `longest` is the longest draft that more than one of the units has. `units` is their effective number.
    """

    k: int
    runs: Runs
    counts: Floats
    group: Ints
    run_tokens: Ints
    token_counts: Floats
    token_group: Ints
    tokens: Floats
    plain_rounds: Floats
    rounds: int
    requests: int
    longest: int
    emitted: bool
    units: float

    def at(self, ks: Sequence[int]) -> Walked:
        """Walk the trace with every K of `ks`."""
        columns = [self.tokens, self.plain_rounds]
        for k in ks:
            found = replayed(self.runs, k)
            columns += [
                self._sums(self.group, found.rounds * self.counts),
                self._sums(self.group, found.accepted * self.counts),
                self._sums(self.token_group, passes(self.run_tokens, k) * self.token_counts),
            ]
        return Walked(tuple(ks), np.stack(columns, axis=1), self.units)

    def _sums(self, group: Ints, values: Floats) -> Floats:
        return np.bincount(group, values, minlength=self.tokens.size).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Walked:
    """Sums by group (rows): tokens, plain rounds, then rounds, accepted drafts and passes of every K.

    Rounds are those that verify the same drafts, passes those that commit the same tokens.
    """

    ks: tuple[int, ...]
    sums: Floats
    units: float

    def totals(self) -> Floats:
        """The sums over all groups, an array (1, columns)."""
        return np.asarray(self.sums.sum(axis=0, keepdims=True), dtype=np.float64)

    def draws(self) -> Floats | None:
        """Bootstrap draws of the sums, an array (replicates, columns); None below two units in effect."""
        return None if self.units < FEWEST_UNITS else resampled_sums(self.sums)

    def split(self, sums: Floats, k: int) -> tuple[Floats, Floats, Floats]:
        """Take sums of `totals` or `draws` apart: tau_verified, tau_committed, share of plain rounds at one K."""
        place = 2 + 3 * self.ks.index(k)
        tokens, plain, rounds, accepted, needed = sums[:, [0, 1, place, place + 1, place + 2]].T
        every = np.maximum(needed + plain, 1e-300)
        return 1.0 + accepted / np.maximum(rounds, 1e-300), tokens / every, plain / every


@dataclass(frozen=True, slots=True)
class Source:
    """The trace of a stratum; or None, and in `notes` first why. Further notes say what a reader must know."""

    trace: Trace | None
    notes: tuple[str, ...]


def source(rows: Sequence[Row], domain: Sequence[Row]) -> Source:
    """Take the trace of a stratum from its rows of `run_lengths.sql` and `replay_domain.sql`."""
    total = sum(row["rounds"] for row in domain)
    if not rows:
        worst = next((row for row in domain if row["kind"] != "chain"), None)
        if worst is None:
            return Source(None, ("no replay: no round drafted a token",))
        return Source(None, (f"no replay: {_why(worst)}",))
    trace, inner, shortened = _trace(rows)
    notes = [
        f"{row['rounds'] / total:.0%} of the rounds lie outside the replay: {_why(row)}"
        for row in domain
        if row["kind"] != "chain" and row["rounds"] > _WORTH_A_WORD * total
    ]
    if _follows_something(inner, shortened):
        return Source(None, (f"no replay: {_VARYING.format(share=shortened / inner, k=trace.k)}", *notes))
    if not trace.emitted:
        notes.append("committed tokens are not logged: tau_committed takes accepted drafts and one token a pass")
    return Source(trace, tuple(notes))


def told(k: int, rounds: int, requests: int) -> str:
    """Say what the trace is, and where it is short."""
    text = f"replayed from {many(rounds, 'round')} of {many(requests, 'request')} at K {k}"
    if rounds < ENOUGH_ROUNDS:
        return f"{text}: no K that can be replayed has {ENOUGH_ROUNDS} rounds"
    return f"{text}: a short trace, see the intervals" if rounds < FEW_ROUNDS else text


def _follows_something(inner: int, shortened: int) -> bool:
    """Whether more drafts are cut than `MOST_SHORTENED` of them and two standard deviations of that count."""
    return shortened > MOST_SHORTENED * inner + 2.0 * math.sqrt(MOST_SHORTENED * (1.0 - MOST_SHORTENED) * inner)


def _why(row: Row) -> str:
    methods = row["methods"] or []
    return _OUTSIDE[row["kind"]].format(methods=f" ({', '.join(methods)})" if methods else "")


def _trace(rows: Sequence[Row]) -> tuple[Trace, int, int]:
    """The trace, its rounds but the last two of each request, and how many of these drafted fewer than K."""
    kinds: list[tuple[int, int, bool, int]] = []
    committed: list[tuple[int, int, int]] = []
    for number, row in enumerate(rows):
        group = number % _GROUPS
        for name, by_zero in (("ended_by_zero", True), ("open", False)):
            kinds += [(group, length, by_zero, count) for length, count in _pairs(row[name])]
        committed += [(group, tokens, count) for tokens, count in _pairs(row["tokens"])]
    table, given = np.asarray(kinds, dtype=np.int64), np.asarray(committed, dtype=np.int64)
    size = min(len(rows), _GROUPS)
    of_row = np.arange(len(rows)) % _GROUPS
    sums = {
        name: np.asarray([row[name] or 0 for row in rows], dtype=np.float64)
        for name in ("rounds", "plain_rounds", "accepted", "emitted", "emitted_rounds")
    }
    every = sums["rounds"] + sums["plain_rounds"]
    emitted = bool(np.all(sums["emitted_rounds"] == every))
    tokens = sums["emitted"] if emitted else sums["accepted"] + every
    trace = Trace(
        k=int(rows[0]["trace_k"]),
        runs=Runs(table[:, 1], table[:, 2].astype(np.bool_)),
        counts=table[:, 3].astype(np.float64),
        group=table[:, 0],
        run_tokens=given[:, 1],
        token_counts=given[:, 2].astype(np.float64),
        token_group=given[:, 0],
        tokens=np.bincount(of_row, tokens, minlength=size).astype(np.float64),
        plain_rounds=np.bincount(of_row, sums["plain_rounds"], minlength=size).astype(np.float64),
        rounds=int(sums["rounds"].sum()),
        requests=sum(int(row["requests"]) for row in rows),
        longest=sorted(int(row["longest"]) for row in rows)[-2:][0],
        emitted=emitted,
        units=float(every.sum() ** 2 / np.sum(every**2)),
    )
    return trace, sum(int(row["inner_rounds"]) for row in rows), sum(int(row["shortened"]) for row in rows)


def _pairs(histogram: Mapping[int, int] | None) -> Iterable[tuple[int, int]]:
    return (histogram or {}).items()
