"""A toy target, a draft of its first two layers, and prompts; for vLLM's environment (torch, transformers).

    python toy_models.py FOLDER

Attention and MLP outputs are scaled down so that what comes next hangs mostly on the last token: prompt lookup then
hits, and the short draft agrees with the target on about half of the tokens.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, HIDDEN, LAYERS = 2048, 512, 8


def tokenizer() -> Any:
    words = ["<pad>", "<s>", "</s>", "<unk>"] + [f"w{i:04d}" for i in range(VOCABULARY - 4)]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def target() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=1376, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1.0)
        model.lm_head.weight.normal_(0, 4.5 / HIDDEN**0.5)
        for layer in model.model.layers:
            for parameter in layer.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0, 1.0 / parameter.shape[1] ** 0.5)
            layer.self_attn.o_proj.weight.mul_(0.02)
            layer.mlp.down_proj.weight.mul_(0.2)
        model.lm_head.weight[:4] = 0  # a special token is never the likeliest
    return model


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    words, model = tokenizer(), target()
    draft = copy.deepcopy(model)
    draft.model.layers = draft.model.layers[:2]
    draft.config.num_hidden_layers = 2
    draft.config.layer_types = None
    rng = random.Random(11)
    seeds = [rng.randrange(4, VOCABULARY) for _ in range(16)]
    made = model.generate(
        torch.tensor([[s] for s in seeds]), max_new_tokens=44, do_sample=False, eos_token_id=None, pad_token_id=0
    ).tolist()
    prompts = {
        "copy": [" ".join(f"w{i - 4:04d}" for i in [*text, text[0]]) for text in made],
        "chat": [" ".join(f"w{rng.randrange(VOCABULARY - 4):04d}" for _ in range(32)) for _ in seeds],
    }
    for name, which in (("target", model), ("draft", draft)):
        which.to(torch.bfloat16).save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    (folder / "prompts.json").write_text(json.dumps(prompts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
