"""Where a policy comes from: a folder, a GGUF file, the hub, or nothing but a config."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from rlhf.errors import UserError, require
from rlhf.interfaces import LanguageModel, ModelPath, Policy
from rlhf.models import adapter_files
from rlhf.models.freezing import freeze_below
from rlhf.models.gguf import (
    SUFFIX,
    check_gguf_packages,
    find_gguf,
    forget_quantisation,
    no_bar_of_its_own,
    unpacked,
    without_invented_tokens,
)
from rlhf.models.hub import WHOLE_MODEL, reading
from rlhf.models.lora import LoRA, attach, check_trained
from rlhf.models.modules import seeded
from rlhf.models.storage import HEAD_SETTINGS, TOKENIZER, check_loaded, check_model_folder, no_progress_bars
from rlhf.models.tokenizer import SMALLEST_VOCABULARY, check_tokenizer, find_chat_template, train_bpe
from rlhf.models.vocabulary import extend_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SET_BY_TOKENIZER = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class Pretrained(Policy):
    """A causal language model that exists already, with its tokenizer.

    Args:
        path: A folder, a GGUF file, "@stage" for the result of an earlier stage, or a name on the Hugging Face hub. A
            folder may hold an adapter, which is merged into its base, or trained on: see ``lora``.
        dropout: Probability for every dropout of the model (layer drop is then off); null keeps the model's own.
        dtype: Precision in which the weights are loaded.
        trust_remote_code: Whether code that comes with the model may run.
        trainable_layers: Train only the last so many blocks and what stands behind them (the last norm, an output layer
            that is not tied to the embedding); null trains everything. What is frozen costs no gradient and no
            optimiser state, and the saved model is complete all the same. With ``lora``, the last so many blocks have
            adapters, and nothing else is trained.
        lora: Train low-rank adapters, and freeze all else; null trains the weights themselves.
        pad_token: Token that fills unused columns, added if the tokenizer does not have it; null keeps the tokenizer's.
        eos_token: Token that ends a response, added if the tokenizer does not have it; null keeps the tokenizer's.
        add_tokens: Further tokens that are to be one id each. A token without a row in the embedding gets one, which
            starts as the mean of the others.
        chat_template: Jinja template, or ``turns`` for a plain one, that the tokenizer gets and is saved with; null
            keeps the tokenizer's own.
    """

    path: ModelPath
    dropout: float | None = None
    dtype: Literal["fp32", "bf16"] = "fp32"
    trust_remote_code: bool = False
    trainable_layers: int | None = None
    lora: LoRA | None = None
    pad_token: str | None = None
    eos_token: str | None = None
    add_tokens: list[str] = field(default_factory=list)
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("path: it is empty; give a folder, a GGUF file, @stage or a hub name")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"dropout: {self.dropout} is not a probability; give 0 or more and less than 1")
        require(at_least=0, trainable_layers=self.trainable_layers)
        for name, token in {"pad_token": self.pad_token, "eos_token": self.eos_token}.items():
            if token == "":
                raise UserError(f"{name}: ''; give a token, or null for the tokenizer's own")
        if "" in self.add_tokens:
            raise UserError("add_tokens: one of them is empty; leave it out")
        if self.chat_template is not None:
            find_chat_template(self.chat_template)

    def check_inputs(self) -> None:
        path = os.path.expanduser(self.path)
        if looks_local(path):
            if file := find_gguf(path):
                check_gguf_packages(file)
            else:
                check_model_folder(path)
            return
        from transformers.utils.hub import cached_file

        with reading(path, local=False):
            cached_file(path, "config.json")

    def outline(self) -> PreTrainedModel | None:
        from transformers import AutoConfig

        path = os.path.expanduser(self.path)
        local = looks_local(path)
        if path.startswith("@") or self.trust_remote_code or find_gguf(path) or adapter_files.is_adapter(path):
            return None
        with reading(self.path, local=local):
            config = AutoConfig.from_pretrained(path, local_files_only=local)
        return _outline(config)

    def check_training(self, outline: PreTrainedModel) -> None:
        check_trained(outline, self.lora, self.trainable_layers)

    @no_progress_bars()
    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> LanguageModel:
        """Loads the model. ``corpus`` is not needed, and ``seed`` draws adapters only.

        Raises:
            UserError: a local path, or a file in it, does not exist; the hub is not asked then.
            UserError: the path is no causal language model, or the hub did not give it.
            UserError: the tokenizer has ids that the model has no embedding for.
            UserError: the adapters asked for do not fit the model, or the saved ones to be trained on.
        """
        language_model = self._load()
        module, tokenizer = language_model
        tokens = {"pad_token": self.pad_token, "eos_token": self.eos_token, "add_tokens": self.add_tokens}
        new = extend_vocabulary(module, tokenizer, **tokens) if any(tokens.values()) else []
        check_tokenizer(tokenizer, module)
        if self.lora is not None or self.trainable_layers is not None:
            self._check_learnt([token for token in new if token != self.pad_token])
        if self.lora is not None:
            self._attach(module, self.lora, seed, resized=bool(new))
        elif self.trainable_layers is not None:
            freeze_below(module, self.trainable_layers)
        return language_model

    def _check_learnt(self, new: list[str]) -> None:
        if new:
            which = f"trainable_layers: {self.trainable_layers}" if self.lora is None else "lora"
            raise UserError(
                f"{which} freezes the embedding, so the new token {new[0]!r} would never be learnt; add it in an "
                "earlier stage that trains everything"
            )

    def _attach(self, module: PreTrainedModel, lora: LoRA, seed: int, *, resized: bool) -> None:
        """Adapters on the model: new ones, or those that the path names."""
        path = os.path.expanduser(self.path)
        saved = adapter_files.read_config(path) if adapter_files.is_adapter(path) else None
        problem = None
        if lora.start == "saved":
            if saved is None:
                raise UserError(f"lora.start: 'saved', but {path} holds no adapter; give the folder of one, or new")
            adapter_files.check_same_shape(lora, path, saved)
            base = cast(str, saved.base_model_name_or_path)
        else:
            base = os.path.abspath(path) if looks_local(path) else path
            problem = "path is an adapter itself" if saved is not None else None
        if find_gguf(base):
            problem = "the base is a GGUF file"
        if resized:
            problem = "the base has got new tokens"
        if problem is not None and lora.export != "merged":
            raise UserError(
                f"lora.export: {lora.export!r}, but {problem}, so that no folder holds what the adapter belongs to; "
                "export it merged"
            )
        attach(module, lora, seed=seed, base=None if problem else base, layers=self.trainable_layers)
        if lora.start == "saved":
            adapter_files.load_adapter(module, path)

    def _load_with_adapter(self, path: str) -> LanguageModel:
        """The base of an adapter's folder, into which the adapter is merged unless it is to be trained on."""
        from transformers import AutoTokenizer

        config = adapter_files.read_config(path)
        base = dataclasses.replace(self, path=config.base_model_name_or_path, lora=None, trainable_layers=None)
        module, tokenizer = base._load()
        if self.lora is None or self.lora.start == "new":
            adapter_files.merge_adapter(module, path, config)
        module.name_or_path = path
        if any((Path(path) / name).is_file() for name in TOKENIZER):
            with reading(path, local=True):
                tokenizer = AutoTokenizer.from_pretrained(path)
            if self.chat_template is not None:
                tokenizer.chat_template = find_chat_template(self.chat_template)
        return LanguageModel(module, tokenizer)

    def _load(self) -> LanguageModel:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        path = os.path.expanduser(self.path)
        local = looks_local(path)
        if local:
            self.check_inputs()
        if (Path(path) / HEAD_SETTINGS).exists():
            raise UserError(f"path: {path} is a reward model or critic; give the folder of a language model")
        if adapter_files.is_adapter(path):
            return self._load_with_adapter(path)
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code, "local_files_only": local}
        weights: dict[str, Any] = {"dtype": DTYPES[self.dtype], "output_loading_info": True}
        remedy = WHOLE_MODEL
        if local and (file := find_gguf(path)):
            path, options["gguf_file"] = str(file.parent), file.name
            weights |= unpacked()
            remedy = (
                "give a complete GGUF file of an architecture that transformers reads, or the model in its own format"
            )
        with no_bar_of_its_own(), reading(self.path, local=local, remedy=remedy):
            config = AutoConfig.from_pretrained(path, **options)
            if self.dropout is not None:
                _set_dropout(config, self.dropout)
            model_class = cast(Any, AutoModelForCausalLM)
            module, info = model_class.from_pretrained(path, config=config, **weights, **options)
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
        if "gguf_file" in options:
            forget_quantisation(module)
            tokenizer = without_invented_tokens(tokenizer, module.get_input_embeddings().weight.shape[0])
        check_loaded(path, info)
        if self.chat_template is not None:
            tokenizer.chat_template = find_chat_template(self.chat_template)
        return LanguageModel(module, tokenizer)


@dataclass(frozen=True, kw_only=True)
class FromScratch(Policy):
    """A new model with random weights, and a byte-level BPE trained on the stage's own texts.

    Args:
        config: Settings of the architecture as Hugging Face names them, ``model_type`` among them, for example
            ``{model_type: gpt2, n_layer: 2, n_embd: 96, n_head: 4}``. Vocabulary and special ids are the tokenizer's.
        vocab_size: Largest vocabulary of the tokenizer, all bytes and two special tokens included.
        chat_template: Jinja template, or ``turns`` for a plain one, that the tokenizer gets; null for none.
    """

    config: dict[str, Any]
    vocab_size: int = 1024
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config.get("model_type"), str):
            raise UserError(f"config: no model_type in {sorted(self.config)}; name an architecture such as gpt2")
        if owned := [key for key in SET_BY_TOKENIZER if key in self.config]:
            raise UserError(f"config.{owned[0]}: {self.config[owned[0]]} is the tokenizer's to say; leave it out")
        if self.vocab_size < SMALLEST_VOCABULARY:
            raise UserError(f"vocab_size: {self.vocab_size}; give {SMALLEST_VOCABULARY} (all bytes) or more")
        if self.chat_template is not None:
            find_chat_template(self.chat_template)

    def _config(self, **ids: int | None) -> PreTrainedConfig:
        settings = {key: value for key, value in self.config.items() if key != "model_type"}
        _check_settings(self.config["model_type"], settings)
        return _config(self.config["model_type"], {**settings, **ids})

    def outline(self) -> PreTrainedModel:
        return _outline(self._config(**dict.fromkeys(SET_BY_TOKENIZER) | {"vocab_size": self.vocab_size}))

    def check_inputs(self) -> None:
        self.outline()

    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> LanguageModel:
        """Trains the tokenizer and draws the weights.

        Raises:
            UserError: the architecture or one of its settings is unknown, or there is no text.
        """
        from transformers import AutoModelForCausalLM

        self.outline()
        tokenizer = train_bpe(corpus(), self.vocab_size)
        if self.chat_template is not None:
            tokenizer.chat_template = find_chat_template(self.chat_template)
        ids = {
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        with seeded(seed):
            module: PreTrainedModel = AutoModelForCausalLM.from_config(self._config(**ids), dtype=torch.float32)
        return LanguageModel(module.eval(), tokenizer)


def looks_local(path: str) -> bool:
    """Whether a path means a place here. A hub name is ``name`` or ``owner/name``, where ``owner`` is no folder."""
    first, *rest = Path(path).parts or ("",)
    return path.startswith((".", "/", "~")) or path.endswith(("/", SUFFIX)) or len(rest) > 1 or os.path.exists(first)


def _set_dropout(config: PreTrainedConfig, probability: float) -> None:
    for name, value in config.to_dict().items():
        if "drop" not in name or isinstance(value, bool) or not isinstance(value, float | int):
            continue
        setattr(config, name, 0.0 if "layer" in name else probability)


def _config(model_type: str, settings: dict[str, Any]) -> PreTrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(model_type, **settings)
    except (StrictDataclassError, TypeError) as error:
        raise UserError(f"config: {model_type} does not take these settings; {' '.join(str(error).split())}") from error


def _outline(config: PreTrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # whatever an architecture does with sizes that do not fit
        raise UserError(
            f"config: {config.model_type} makes no causal language model of these settings ({error}); correct them"
        ) from error


def _check_settings(model_type: str, settings: dict[str, Any]) -> None:
    """Refuses settings that the architecture does not have: the library would keep them and never read them."""
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING.keys()), 1)
        hint = f"did you mean {near[0]}?" if near else "see the architectures that transformers lists"
        raise UserError(f"config.model_type: {model_type} is unknown; {hint}")
    default = _config(model_type, {})
    known = {name for name in default.to_dict() if not name.startswith("_")} | set(default.attribute_map)
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UserError(f"config.{name}: {model_type} has no such setting; {hint}")
