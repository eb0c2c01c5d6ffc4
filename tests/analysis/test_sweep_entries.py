"""Which entries of a sweep are compared, and the best among them, for any entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.sweep_ends import known_ends, possible, spread_ends
from tracelens.analysis.sweep_entries import SOURCES, Candidate, SweepEntry, best, compared, ran_too_little
from tracelens.model.choice import REPLICATES


def timed(k: int, source: str, time: float | None, *, extrapolated: bool = False, known: bool = True) -> Candidate:
    """An entry with this token time, and with a spread of 20% where it is known."""
    entry = SweepEntry(k, source, relative_token_time=time, extrapolated=extrapolated)
    if time is None or not known:
        return Candidate(entry)
    entry = replace(entry, relative_token_time_low=0.8 * time, relative_token_time_high=1.2 * time)
    return Candidate(entry, time * np.linspace(0.8, 1.2, REPLICATES))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Any entries of any K, one of each source at most, in the order of K and source."""
    made = []
    for k in draw(st.lists(st.integers(1, 9), unique=True, max_size=5)):
        for source in SOURCES:
            if not draw(st.booleans()):
                continue
            time = draw(st.none() | st.floats(0.2, 3.0))
            extrapolated = source != "observed" and draw(st.booleans())
            known = time is not None and draw(st.booleans())
            made.append(timed(k, source, time, extrapolated=extrapolated, known=known))
    return sorted(made, key=lambda c: (c.entry.k, SOURCES.index(c.entry.source)))


@given(candidates())
def test_one_rule(made: Sequence[Candidate]) -> None:
    """Of each K the first that has a time, what ran before the rest; never one that is extrapolated, nor one that ran
    in too few requests."""
    taken = compared(c.entry for c in made)
    for k in {c.entry.k for c in made}:
        usable = [
            c.entry
            for c in made
            if c.entry.k == k
            and c.entry.relative_token_time
            and not c.entry.extrapolated
            and (c.entry.source != "observed" or c.draws is not None)
        ]
        assert taken.get(k) is (usable[0] if usable else None)
    assert list(taken) == sorted(taken)


@given(candidates())
def test_the_best_is_compared(made: Sequence[Candidate]) -> None:
    taken = compared(c.entry for c in made)
    chosen = best(made, 0.95)
    if not taken:
        assert chosen.k is None
        return
    least = min(1.0, *(e.relative_token_time or 9.0 for e in taken.values()))
    assert chosen.relative_token_time == least
    assert chosen.k in {0, *taken}
    assert chosen.k == 0 or taken[chosen.k].relative_token_time == least
    spread = {c.entry.k for c in made if c.draws is not None and taken.get(c.entry.k) is c.entry}
    assert set(chosen.unspread) == set(taken) - spread
    told = spread == set(taken)
    assert (chosen.low is not None) == (chosen.high is not None) == told
    if chosen.low is not None:
        assert {chosen.low, chosen.high} <= {0, *taken}
        assert chosen.low <= (chosen.high or 0)


def test_a_longer_k_that_nobody_ran_is_left_out() -> None:
    made = [
        timed(3, "observed", 0.8),
        timed(7, "replayed", 0.5, extrapolated=True),
    ]
    assert best(made, 0.95).k == 3
    assert best(made[1:], 0.95).k is None


def test_what_ran_goes_before_a_better_replay() -> None:
    made = [
        timed(1, "observed", 1.9),
        timed(1, "replayed", 0.9),
    ]
    assert best(made, 0.95).k == 0


def test_a_lucky_request_does_not_win() -> None:
    """Its replay is taken in its place; where there is none, or one that is extrapolated, the K is left out."""
    lucky, steady = timed(7, "observed", 0.2, known=False), timed(4, "observed", 0.75)
    assert ran_too_little(lucky.entry)
    assert best([steady, lucky], 0.95).k == 4
    told = timed(7, "replayed", 0.9)
    assert compared([steady.entry, lucky.entry, told.entry]) == {4: steady.entry, 7: told.entry}
    beyond = timed(7, "replayed", 0.3, extrapolated=True)
    found = best([steady, lucky, beyond], 0.95)
    assert (found.k, found.low is not None, found.unspread) == (4, True, ())


def test_what_has_no_spread_is_not_certain() -> None:
    """One K of several without a spread, best or not: no interval of the best K, and it is named."""
    for time in (0.5, 0.9):
        found = best([timed(2, "geometric", time, known=False), timed(4, "observed", 0.75)], 0.95)
        assert (found.low, found.high, found.unspread) == (None, None, (2,))
        assert found.k == (2 if time < 0.75 else 4)


@given(
    st.integers(1, 9), st.none() | st.floats(0.0, 9.0), st.none() | st.floats(0.0, 1.0),
    st.none() | st.floats(1.0, 2.0), st.none() | st.floats(0.5, 1.0), st.none() | st.floats(1.0, 2.0),
)  # fmt: skip
def test_both_ends_or_none(
    k: int, tau: float | None, low: float | None, high: float | None, least: float | None, most: float | None
) -> None:
    """Whatever is known of the tokens and of the cost; the time lies between the ends."""
    figures = {"tau_committed": tau, "tau_committed_low": tau and low and low * tau,
               "tau_committed_high": tau and high and high * tau}  # fmt: skip
    ends = possible(k, figures, "tau_committed")
    assert (ends[0] is None) == (ends[1] is None)
    below, above = known_ends(spread_ends(0.8, k, figures, (least, most)), {})
    assert (below is None) == (above is None)
    if below is not None and above is not None:
        assert 0.0 < below <= 0.8 * (1 + 1e-9)
        assert above >= 0.8 * (1 - 1e-9)


def test_ends_of_a_claim_are_those_of_its_tokens() -> None:
    figures = {"tau_committed": 2.0, "tau_committed_low": 1.6, "tau_committed_high": 2.5}
    low, high = spread_ends(0.6, 4, figures, (1.0, 1.0))
    assert low == pytest.approx(0.6 * 2.0 / 2.5)
    assert high == pytest.approx(0.6 * 2.0 / 1.6)
    assert spread_ends(0.6, 4, figures | {"tau_committed": 0.5, "tau_committed_low": 0.0}, (1.0, 1.0)) == (None, None)
    assert known_ends((0.5, 0.7), {"n_eff": 1.2}) == (None, None)
    assert known_ends((0.5, 0.7), {"n_eff": 2.0}) == (0.5, 0.7)
