"""Rollouts by the hybrid engine beside Hugging Face ``generate``: same weights, dtype, sampling; in turns in one run.

    python benchmarks/rollout.py

A decoder of OPT's shape with 30 M weights (width 512, 8 layers, vocabulary 8192), in fp32. Two cases:

- uniform: 16 prompts of 32 tokens, 64 new tokens each;
- ragged: 64 prompts of 8 to 128 tokens, responses of at most 128 new ones that end with probability 1/32 a token, so
  that their mean is a quarter of the limit and some go up to it.

Prints a Markdown table of medians. The engine's seconds have in them what a switch costs: copying the weights anew, and
packing them. ``generate`` decodes all rows until the last has ended; so its tokens are counted as far as they belong to
a response.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

STOP_EVERY = 32
"""One of so many tokens ends a ragged response: the model is nearly uniform over its vocabulary."""


class Case(NamedTuple):
    """Prompts, and how they are answered."""

    name: str
    prompts: list[list[int]]
    new: int
    stops: list[int]


def cases(vocabulary: int, scale: float = 1.0) -> list[Case]:
    """Both; ``scale`` shortens them for tests."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(4, vocabulary) for _ in range(length)]

    short, long = max(int(8 * scale), 1), max(int(128 * scale), 4)
    uniform = [prompt(max(int(32 * scale), 2)) for _ in range(16)]
    ragged = [prompt(draw.randint(short, long)) for _ in range(64)]
    stops = list(range(4, vocabulary, STOP_EVERY))
    return [Case("uniform", uniform, max(int(64 * scale), 2), []), Case("ragged", ragged, long, stops)]


def make_model(vocabulary: int = 8192, width: int = 512, layers: int = 8) -> Any:
    """A causal language model of OPT's shape."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    heads = {
        "num_attention_heads": 8,
        "ffn_dim": 4 * width,
        "word_embed_proj_dim": width,
        "max_position_embeddings": 512,
    }
    none = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 1}
    config = OPTConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, **heads, **none)
    return OPTForCausalLM(config).eval()


def make_tokenizer(vocabulary: int) -> Any:
    """One word a token."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0", pad_token="w1")


def theirs(model: Any, case: Case) -> int:
    """``generate`` on the padded batch; the number of response tokens."""
    width = max(map(len, case.prompts))
    ids = torch.tensor([[1] * (width - len(row)) + row for row in case.prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in case.prompts])
    torch.manual_seed(0)
    settings = {"max_new_tokens": case.new, "do_sample": True, "top_k": 0, "eos_token_id": case.stops or None}
    with torch.no_grad():
        found = model.generate(ids, attention_mask=mask, pad_token_id=1, **settings)[:, width:].tolist()
    stops = set(case.stops)
    return sum(next((i + 1 for i, token in enumerate(row) if token in stops), len(row)) for row in found)


def ours(live: Any, tokenizer: Any, case: Case) -> int:
    """The engine's ``generate``."""
    from rlhf.engines.inference import Sampling
    from rlhf.types import Prompts

    count = len(case.prompts)
    prompts = Prompts(case.prompts, [""] * count, [""] * count)
    rollout = live.generate(
        prompts, Sampling(max_new_tokens=case.new), tokenizer, seed=0, counters=range(count), stop_ids=case.stops
    )
    return int(rollout.mask.sum())


def measure(*, repeats: int = 5, scale: float = 1.0, **sizes: int) -> list[str]:
    """The table.

    Args:
        repeats: Of each case and side, in turns; medians are told.
        scale: Of all lengths.
        **sizes: Of the model.
    """
    from rlhf.algorithms.optimizers import SGD
    from rlhf.engines.hybrid import Hybrid
    from rlhf.models.modules import PolicyModel

    model = make_model(**sizes)
    vocabulary = model.config.vocab_size
    tokenizer, live = make_tokenizer(vocabulary), Hybrid().build(PolicyModel(model), optimizer=SGD(lr=0.1))
    lines = ["| case | side | tokens | seconds | tokens/s | switch s | ratio |", "|---|---|---|---|---|---|---|"]
    for case in cases(vocabulary, scale):
        sides: dict[str, Callable[[], int]] = {
            "generate": lambda case=case: theirs(model, case),
            "Hybrid": lambda case=case: ours(live, tokenizer, case),
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        rates: dict[str, list[float]] = {side: [] for side in sides}
        tokens, switches = dict.fromkeys(sides, 0), []
        for turn in range(repeats + 1):
            for side, answer in sides.items():
                start = time.perf_counter()
                tokens[side] = answer()
                took = time.perf_counter() - start
                if turn:  # the first is to warm up
                    seconds[side].append(took)
                    rates[side].append(tokens[side] / took)
                if side == "Hybrid":
                    switches.append(live.sampling_figures()["time/switch"])
        ratio = statistics.median(rates["Hybrid"]) / statistics.median(rates["generate"])
        for side in sides:
            own = side == "Hybrid"
            lines.append(
                f"| {case.name} | {side} | {tokens[side]} | {statistics.median(seconds[side]):.2f} | "
                f"{statistics.median(rates[side]):.0f} | {f'{statistics.median(switches):.2f}' if own else ''} | "
                f"{f'{ratio:.2f}' if own else ''} |"
            )
    return lines


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="all cores by default")
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 8")
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for line in measure(repeats=options.repeats, scale=options.scale, width=options.width, layers=options.layers):
        print(line, flush=True)


if __name__ == "__main__":
    main()
