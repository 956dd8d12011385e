"""The shapes of models on the hub, as their configs there say: for recipes whose models are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPT = {  # width, layers, heads
    "1.3b": (2048, 24, 32),
    "6.7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "66b": (9216, 64, 72),
    "175b": (12288, 96, 96),
}


def _opt(width: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width}
    return {"model_type": "opt", "vocab_size": 50272, "word_embed_proj_dim": width, **sizes, **others}


SHAPES: dict[str, dict[str, Any]] = {
    **{f"facebook/opt-{size}": _opt(*shape) for size, shape in OPT.items()},
    "facebook/opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "meta-llama/Meta-Llama-3-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "Qwen/Qwen3-4B-Base": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
}


def write_shapes(folder: Path) -> None:
    """Folders of the hub's names with nothing but a config, for a run that starts in ``folder``."""
    for name, config in SHAPES.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
