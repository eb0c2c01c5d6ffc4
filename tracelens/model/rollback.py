"""What rollbacks would look like if every draft token were accepted independently."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tracelens.model.acceptance import TokenAcceptProb


def near_k_iid_share(
    prob: TokenAcceptProb, drafted: ArrayLike, weight: ArrayLike = 1.0, *, delta: int = 1
) -> float | None:
    """Share of rounds whose rollback is almost the whole draft, under i.i.d. acceptance (MODEL.md 6).

    A near-K rollback keeps at most delta drafts and loses at least one, so a round escapes with
    p^min(delta + 1, d): the mean over rounds of 1 - p^min(delta + 1, d). None without rounds.
    """
    d = np.asarray(drafted, dtype=np.float64)
    w = np.broadcast_to(np.asarray(weight, dtype=np.float64), d.shape)
    if not w.sum() > 0:
        return None
    return float(np.sum(w * (1.0 - prob.value ** np.minimum(delta + 1, d))) / w.sum())


def near_k_share(accepted: ArrayLike, drafted: ArrayLike, weight: ArrayLike = 1.0, *, delta: int = 1) -> float | None:
    """Share of rounds with d - a >= d - delta and > 0 (MODEL.md 6); None without rounds."""
    a, d = np.asarray(accepted), np.asarray(drafted)
    w = np.broadcast_to(np.asarray(weight, dtype=np.float64), d.shape)
    if not w.sum() > 0:
        return None
    return float(w[(a <= delta) & (a < d)].sum() / w.sum())
