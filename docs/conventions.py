"""One truth, and what each engine prints for it: `python docs/conventions.py` writes the table of conventions.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parent / "conventions.md"
MARK = "<!-- table: python docs/conventions.py -->"


@dataclass(frozen=True)
class Truth:
    """Rounds of many requests: every draft of K tokens, each accepted with one chance once all before it were.

    Attributes:
        accepted: accepted drafts by round.
        emitted: committed tokens by round: accepted and the target's own one, the last round cut at the output's end.
        request: number of the request of each round.
        outputs: tokens of every request, the first one of the prefill included.
    """

    k: int
    accepted: np.ndarray
    emitted: np.ndarray
    request: np.ndarray
    outputs: np.ndarray

    @property
    def rounds(self) -> int:
        """Request-rounds."""
        return len(self.accepted)

    @property
    def by_request(self) -> np.ndarray:
        """Rounds of every request."""
        return np.bincount(self.request)


def simulate(k: int = 5, chance: float = 0.75, output: int = 64, requests: int = 400, seed: int = 7) -> Truth:
    """Draw the truth."""
    rng = np.random.default_rng(seed)
    accepted, emitted, request = [], [], []
    for number in range(requests):
        left = output - 1  # the prefill gives the first token
        while left > 0:
            hits = rng.random(k) < chance
            taken = int(k if hits.all() else np.argmin(hits))
            accepted.append(taken)
            emitted.append(min(taken + 1, left))
            request.append(number)
            left -= emitted[-1]
    outputs = np.full(requests, output)
    return Truth(k, np.array(accepted), np.array(emitted), np.array(request), outputs)


def printed(truth: Truth) -> Iterator[tuple[str, str, str, str]]:
    """(engine and surface, its name for the number, its formula, what it prints for the truth)."""
    a, n, k = truth.accepted, truth.rounds, truth.k
    total = int(a.sum())
    survival = [int((a >= i).sum()) / n for i in range(1, k + 1)]
    hazard = [int((a >= i).sum()) / max(int((a >= i - 1).sum()), 1) for i in range(1, k + 1)]
    rounds, outputs = truth.by_request, truth.outputs
    own = np.bincount(truth.request, weights=a)
    iterations = rounds + 1  # the prefill counted as an iteration

    def rate(value: float) -> str:
        return f"{value:.3f}"

    def rates(values: list[float]) -> str:
        return " ".join(f"{v:.3f}" for v in values)

    yield "**tracelens**", "α `draft_accept_ratio`", "accepted / drafted", f"**{rate(total / (n * k))}**"
    yield "**tracelens**", "τ `tau_verified`", "1 + accepted / rounds", f"**{rate(1 + total / n)}**"
    yield "**tracelens**", "τ `tau_committed`", "committed / rounds", f"**{rate(int(truth.emitted.sum()) / n)}**"
    yield "vLLM 0.8.3+", "Avg Draft acceptance rate", "accepted / drafted", f"{100 * total / (n * k):.1f}%"
    yield "vLLM 0.8.5", "Mean acceptance length", "accepted / rounds, without the target's token", f"{total / n:.2f}"
    yield "vLLM 0.9.0+", "Mean acceptance length", "1 + accepted / rounds", f"{1 + total / n:.2f}"
    yield "vLLM 0.8.5+", "Per-position acceptance rate", "P(accepted ≥ i): survival, not conditional", rates(survival)
    yield "vLLM V0", "System efficiency", "committed / (rounds · (K+1))", rate(float((a + 1).sum()) / (n * (k + 1)))
    yield "SGLang, all", "accept len", "(accepted + rounds) / rounds", f"{1 + total / n:.2f}"
    yield (
        "SGLang 0.5.4-0.5.5",
        "accept rate (line)",
        "(accepted + rounds) / (rounds · (K+1))",
        f"{(total + n) / (n * (k + 1)):.2f}",
    )
    yield (
        "SGLang 0.5.6-0.5.10",
        "accept rate (line)",
        "(accepted + rounds) / (rounds · num_draft_tokens), K+1 of them",
        f"{(total + n) / (n * (k + 1)):.2f}",
    )
    yield "SGLang 0.5.11+", "accept rate (line)", "accepted / (rounds · K)", f"{total / (n * k):.2f}"
    yield (
        "SGLang",
        "spec_accept_length (request)",
        "completion tokens / verify steps: the prefill's token counted",
        rate(float((outputs / rounds).mean())),
    )
    yield "TensorRT-LLM", "acceptanceLength (iteration)", "(accepted + requests) / requests", rate(1 + total / n)
    yield (
        "trtllm-bench",
        "draft_acceptance_rate",
        "(out − iterations) / (K · iterations), prefill an iteration",
        rate(float(((outputs - iterations) / (k * iterations)).mean())),
    )
    yield "trtllm-bench", "acceptance_length", "out / iterations", rate(float((outputs / iterations).mean()))
    yield "llama.cpp", "draft acceptance", "accepted / tested", f"{total / (n * k):.5f}"
    yield "llama.cpp 2026-06+", "mean len", "1 + accepted / rounds with a draft", f"{1 + total / n:.2f}"
    yield "llama.cpp", "#acc drafts", "rounds with at least one accepted", str(int((a > 0).sum()))
    yield "RTP-LLM", "accept_token_num", "committed a round, before the cut at max_tokens", rate(1 + total / n)
    yield "LMDeploy", "Draft acceptance rate", "as vLLM", f"{100 * total / (n * k):.2f}%"
    yield "MLC", "accept_prob{step}", "survival; step 0 is the target's own token", rates([1.0, *survival])
    yield "MLC", "accept_rate{step}", "conditional", rates(hazard)
    yield "LightLLM", "mtp_avg_token_per_step", "out / verify steps", rate(float((outputs / rounds).mean()))
    yield "oMLX", "accept, tok/cycle", "accepted / drafted; tokens / cycles", f"{total}/{n * k}, {1 + total / n:.2f}"
    yield (
        "AIPerf",
        "mean_acceptance_length",
        "1 + accepted / rounds, mean over requests",
        rate(float((1 + own / rounds).mean())),
    )
    yield "EAGLE", "alpha[i]", "conditional: `hazard`", rates(hazard)
    yield "Spec-Bench", "#Mean accepted tokens", "committed / rounds", rate(int(truth.emitted.sum()) / n)


def table(truth: Truth) -> str:
    """The table as Markdown."""
    head = "| who prints it | under the name | what it is | for this truth |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in printed(truth))


def page(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(MARK)
    _, _, after = rest.partition(MARK)
    return f"{before}{MARK}\n\n{table(simulate())}\n{MARK}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
