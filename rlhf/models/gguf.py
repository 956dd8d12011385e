"""Models in GGUF files, the format of llama.cpp: their weights are unpacked, and trained and saved as any others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SUFFIX = ".gguf"
PACKAGES = ("gguf", "accelerate")
"""What transformers needs to read such a file."""


def find_gguf(path: str | Path) -> Path | None:
    """The GGUF file that a path means: itself, or the only one in a folder that holds no model of another format.

    Raises:
        UserError: the file does not exist, or the folder holds several.
    """
    path = Path(path)
    if path.suffix == SUFFIX and not path.is_dir():
        if not path.is_file():
            raise UserError(f"model path: {path} does not exist; give a GGUF file, or the folder of a saved model")
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise UserError(f"model path: {path} holds {len(files)} GGUF files; give one, such as {files[0]}")
    return files[0] if files else None


def check_gguf_packages(file: Path) -> None:
    """Names the package that is missing to read the file, with the command that installs it."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"model path: {file} needs the package {missing[0]}; pip install 'rlhf[demo]'")


def unpacked() -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that ask for plain weights, where the library could keep them packed."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


@contextmanager
def no_bar_of_its_own() -> Iterator[None]:
    """Inside, the library's reader of these files draws no progress bar: the switch of the others does not reach it."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    reader: Any = modeling_gguf_pytorch_utils
    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = logging.tqdm  # this one asks
    try:
        yield
    finally:
        reader.tqdm = bar


def forget_quantisation(module: PreTrainedModel) -> None:
    """Takes the marks of the file's format off a model whose weights are plain: with them it could not be saved."""
    quantizer: Any = getattr(module, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(module)


def without_invented_tokens(tokenizer: PreTrainedTokenizerBase, rows: int) -> PreTrainedTokenizerBase:
    """The tokenizer without the tokens that the file does not have.

    To a file without an unknown token the library adds one of its own, for which the model has no embedding.

    Args:
        tokenizer: As the library made it.
        rows: Of the model's embedding.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if max(tokenizer.get_vocab().values()) < rows:
        return tokenizer
    state = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
    invented = {token["content"] for token in state["added_tokens"] if token["id"] >= rows}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in invented]
    if state["model"].get("unk_token") in invented:
        state["model"]["unk_token"] = None
    named = {name: token for name, token in tokenizer.special_tokens_map.items() if token not in invented}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        chat_template=tokenizer.chat_template,
        clean_up_tokenization_spaces=False,
        **cast(Any, named),
    )
