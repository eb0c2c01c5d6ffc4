"""A toy engine, recorded: a draft and a target in NumPy, speculative sampling, and ten lines for the recorder.

    python samples/toy_loop.py records
    tracelens ingest records --lake lake
    tracelens report --lake lake --run toy --baseline plain

What is planted: from every token the target may go to the tokens of one half of the vocabulary, all alike. The draft
picks one of these with chance `a`, else one of the other half. Speculative sampling (Leviathan et al. 2023) accepts
sum(min(p, q)) = a of the drafts that it looks at, so that of K drafts a + a² + … + a^K are accepted a round. A draft
pass takes `DRAFT_MS`, a target pass `TARGET_MS`, and the phases are these passes alone: a token is drawn between them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracelens.recorders import Clock, Recorder, Step

K = 4
VOCABULARY = 64
DRAFT_MS, TARGET_MS = 0.1, 1.0
TASKS = {"code": 0.85, "chat": 0.5}
Work = Callable[[float], None]


def planted(a: float) -> float:
    """Accepted over drafted tokens."""
    return sum(a**i for i in range(1, K + 1)) / K


def matrix_work(ms: float) -> None:
    """Multiply matrices for as long: so small ones that the last ends in time."""
    end = time.perf_counter() + ms / 1000
    weights = state = np.full((8, 8), 0.01)
    while time.perf_counter() < end:
        state = np.tanh(state @ weights)


class Model:
    """A table of next-token chances, and what a pass takes."""

    def __init__(self, chance_in_half: float, ms: float, work: Work) -> None:
        tokens = np.arange(VOCABULARY)
        half = (tokens[None, :] + tokens[:, None]) % 2 == 0
        in_half = chance_in_half / (VOCABULARY / 2)
        self.table = np.where(half, in_half, (1 - chance_in_half) / (VOCABULARY / 2))
        self.ms, self.work = ms, work

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Chances behind each of the tokens, shape (len(tokens), VOCABULARY)."""
        self.work(self.ms)
        return self.table[tokens]


def draft(model: Model, token: int, rng: np.random.Generator, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """K tokens one after another, and the chances they were drawn from; the step's draft time is that of all passes."""
    tokens, chances = [token], []
    for _ in range(K):
        with step.draft():
            q = model.forward(np.array(tokens[-1:]))[0]
        chances.append(q)
        tokens.append(int(rng.choice(VOCABULARY, p=q)))
    return np.array(tokens), np.array(chances)


def verify(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    """How many drafts are accepted, and the target's own token behind them."""
    for i in range(K):
        token = tokens[i + 1]
        if rng.random() >= min(1.0, p[i, token] / q[i, token]):
            rest = np.maximum(p[i] - q[i], 0)
            return i, int(rng.choice(VOCABULARY, p=rest / rest.sum()))
    return K, int(rng.choice(VOCABULARY, p=p[K]))


def speculate(recorder: Recorder, requests: int, output: int, rng: np.random.Generator, work: Work) -> None:
    """Requests one after another, half of each task."""
    target = Model(1.0, TARGET_MS, work)
    for r in range(requests):
        task = list(TASKS)[r % len(TASKS)]
        drafter, token, made, index = Model(TASKS[task], DRAFT_MS, work), r % VOCABULARY, 1, 0
        begun = time.perf_counter()
        while made < output:
            with recorder.step() as step:
                tokens, q = draft(drafter, token, rng, step)
                with step.target():
                    p = target.forward(tokens)
                with step.sample():
                    accepted, token = verify(p, q, tokens, rng)
                emitted = min(accepted + 1, output - made)
                step.round(f"r{r}", drafted=K, accepted=accepted, emitted=emitted, task_type=task, round_index=index)
            made, index = made + emitted, index + 1
        took = round((time.perf_counter() - begun) * 1e6)
        recorder.request(f"r{r}", task_type=task, output_tokens=output, decode_us=took)


def plain(recorder: Recorder, requests: int, output: int, work: Work) -> None:
    """The same requests without drafts."""
    target = Model(1.0, TARGET_MS, work)
    for r in range(requests):
        task = list(TASKS)[r % len(TASKS)]
        begun = time.perf_counter()
        for index in range(output - 1):
            with recorder.step() as step:
                with step.target():
                    target.forward(np.array([index % VOCABULARY]))
                step.round(f"p{r}", drafted=0, accepted=0, emitted=1, task_type=task, round_index=index)
        took = round((time.perf_counter() - begun) * 1e6)
        recorder.request(f"p{r}", task_type=task, output_tokens=output, decode_us=took)


def run(
    folder: Path,
    requests: int = 40,
    output: int = 48,
    seed: int = 3,
    work: Work = matrix_work,
    clock: Clock | None = None,
) -> None:
    """Write both runs into a folder."""
    about = {"engine": "toy", "clock": clock, "method": "draft_model", "num_speculative_tokens": K}
    with Recorder(folder / "toy", run_id="toy", **about) as recorder:
        speculate(recorder, requests, output, np.random.default_rng(seed), work)
    with Recorder(folder / "plain", engine="toy", clock=clock, run_id="plain", role="baseline") as recorder:
        plain(recorder, max(requests // 3, 4), output, work)


if __name__ == "__main__":
    run(Path(sys.argv[1] if len(sys.argv) > 1 else "records"))
    for name, a in TASKS.items():
        print(f"planted: {name} alpha {planted(a):.3f}; rho {DRAFT_MS / TARGET_MS:.2f}")
