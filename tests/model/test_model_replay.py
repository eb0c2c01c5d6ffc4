"""The closed form is the literal walk, and it finds the truth where the geometric law does not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracelens.model.acceptance import TokenAcceptProb, expected_tokens, hazards
from tracelens.model.replay import passes, replayed, run_lengths, walk

Ints = NDArray[np.int64]
Request = list[tuple[int, int, bool]]


@st.composite
def a_round(draw: st.DrawFn, longest: int = 8) -> tuple[int, int, bool]:
    drafted = draw(st.integers(0, longest))
    return drafted, draw(st.integers(0, drafted)), draw(st.booleans())


def fixed(k: int) -> st.SearchStrategy[list[Request]]:
    one = st.tuples(st.just(k), st.integers(0, k), st.booleans())
    plain = st.just((0, 0, False))
    return st.lists(st.lists(st.one_of(one, one, plain), min_size=1, max_size=30), min_size=1, max_size=5)


def closed(requests: list[Request], k: int) -> tuple[int, int]:
    flat = [(i, *one) for i, request in enumerate(requests) for one in request]
    columns = np.array(flat, dtype=np.int64).reshape(-1, 4).T
    found = replayed(run_lengths(columns[0], columns[1], columns[2], columns[3] > 0), k)
    return int(found.rounds.sum()), int(found.accepted.sum())


@given(st.lists(st.lists(a_round(), max_size=25), max_size=6), st.integers(1, 12))
def test_closed_form_is_the_literal_walk(requests: list[Request], k: int) -> None:
    """Mixed draft lengths, plain rounds, any K."""
    walked = [walk(request, k) for request in requests]
    assert closed(requests, k) == (sum(n for n, _ in walked), sum(a for _, a in walked))


@given(st.data(), st.integers(1, 9))
def test_the_same_k_gives_the_trace_again(data: st.DataObject, k: int) -> None:
    requests = data.draw(fixed(k))
    rounds = [one for request in requests for one in request if one[0]]
    assert closed(requests, k) == (len(rounds), sum(a for _, a, _ in rounds))


@given(st.lists(st.lists(a_round(), max_size=25), min_size=1, max_size=6))
def test_shorter_drafts_need_no_fewer_rounds(requests: list[Request]) -> None:
    told = [closed(requests, k) for k in range(1, 10)]
    assert all(a[0] >= b[0] and a[1] <= b[1] for a, b in pairwise(told))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 9))
def test_passes_commit_all_tokens(tokens: list[int], k: int) -> None:
    needed = passes(tokens, k)
    assert np.all(needed * (k + 1) >= tokens)
    assert np.all((needed - 1) * (k + 1) < np.maximum(tokens, 1))


def test_by_hand() -> None:
    """3 of 3, 1 of 3, plain, 2 of 3, 3 of 3 at the end; the first unknown flag is a one: runs 5 0 | plain | 2 0, 3."""
    request = [(3, 3, True), (3, 1, False), (0, 0, False), (3, 2, False), (3, 3, True)]
    assert closed([request], 3) == (4, 9)
    assert closed([request], 1) == (3 + 2 + 2, 3 + 1 + 2)
    assert closed([request], 2) == (2 + 1 + 1, 4 + 2 + 2)
    assert closed([request], 7) == (3, 5 + 2 + 3)


def test_refuses() -> None:
    with pytest.raises(ValueError, match="accepted <= drafted"):
        run_lengths([0], [2], [3], [True])
    runs = run_lengths([], [], [], [])
    assert runs.lengths.size == 0
    for call in (lambda: replayed(runs, 0), lambda: passes([3], 0)):
        with pytest.raises(ValueError, match="k must be 1 or more"):
            call()


def tokens_of(rng: np.random.Generator, law: str, requests: int, length: int) -> NDArray[np.bool_]:
    """Whether the draft of each token would be accepted: i.i.d., or a two-state Markov chain of easy and hard text."""
    if law == "iid":
        return rng.random((requests, length)) < 0.75
    easy = np.zeros((requests, length), dtype=np.bool_)
    easy[:, 0] = rng.random(requests) < 0.5
    for t in range(1, length):
        easy[:, t] = np.where(rng.random(requests) < 0.05, ~easy[:, t - 1], easy[:, t - 1])
    return rng.random((requests, length)) < np.where(easy, 0.95, 0.35)


def decode(tokens: NDArray[np.bool_], lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Speculate over fixed text: round j of a request drafts lengths[request, j] tokens."""
    found = []
    for i, flags in enumerate(tokens.tolist()):
        place, j = 0, 0
        while place < len(flags):
            k = int(lengths[i, j % lengths.shape[1]])
            a = 0
            while a < k and place + a < len(flags) and flags[place + a]:
                a += 1
            found.append((i, k, a))
            place, j = place + a + 1, j + 1
    request, drafted, accepted = np.array(found, dtype=np.int64).T
    return request, drafted, accepted


def tau(rng: np.random.Generator, rounds: tuple[Ints, Ints, Ints], k: int) -> float:
    request, drafted, accepted = rounds
    hazard = hazards(accepted, drafted).hazard
    found = replayed(run_lengths(request, drafted, accepted, rng.random(request.size) < hazard[drafted - 1]), k)
    return 1.0 + float(found.accepted.sum() / found.rounds.sum())


@pytest.mark.parametrize(
    ("law", "trace"), [("iid", "fixed"), ("markov", "fixed"), ("iid", "mixed"), ("markov", "mixed")]
)
def test_synthetic_truth(law: str, trace: str) -> None:
    """Replay is within 3% of speculating with that K over the same text, whatever the law; geometric only for i.i.d."""
    rng = np.random.default_rng(5)
    tokens = tokens_of(rng, law, 80, 900)
    fixed_7 = np.full((80, 1), 7)
    lengths = fixed_7 if trace == "fixed" else rng.choice([4, 7], size=(80, 400))
    rounds = decode(tokens, lengths)
    _, drafted, accepted = rounds
    prob = TokenAcceptProb(float(accepted.sum() / (accepted.sum() + (accepted < drafted).sum())))
    off = []
    for k in (1, 2, 3, 5):
        _, _, truth = decode(tokens, np.full((80, 1), k))
        expected = 1.0 + truth.mean()
        assert tau(rng, rounds, k) == pytest.approx(expected, rel=0.03), (law, trace, k)
        off.append(abs(float(expected_tokens(prob, k)) / expected - 1.0))
    assert max(off) < 0.03 if law == "iid" else max(off) > 0.03
