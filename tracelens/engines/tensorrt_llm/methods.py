"""TensorRT-LLM's names of drafters (`decoding_type`), and which of them draft the same number every round."""

from __future__ import annotations

# Drafters that copy from the text find nothing to draft in some steps, and less than K in others; of some names the
# drafter is not known.
_OTHERS = ("ngram", "lookup", "lookahead", "suffix", "user", "save")
_ANY = ("sa", "auto")


def short(name: object) -> str | None:
    """A drafter's name in lower case, `Draft_Target` as `draft_target`; None for what is no plain word."""
    if not isinstance(name, str) or not name.isascii() or not name.replace("_", "").isalnum() or len(name) > 40:
        return None
    return name.lower()


def drafts_always(name: object) -> bool:
    """Whether every round of this drafter has K drafts (MTP, EAGLE, draft models ...); not known is no."""
    word = short(name)
    return word is not None and word not in _ANY and not word.replace("_", "").startswith(_OTHERS)
