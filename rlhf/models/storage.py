"""Folders on disk: a policy that ``from_pretrained`` loads, and a value model beside whose trunk lies its head."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor, nn

from rlhf.errors import UserError
from rlhf.files import atomic_folder, atomic_text
from rlhf.interfaces import LanguageModel, Template, ValueHead
from rlhf.models import adapter_files
from rlhf.models.hub import reading
from rlhf.models.lora import attached
from rlhf.models.modules import PolicyModel, ValueModel, seeded
from rlhf.models.tokenizer import check_tokenizer, pad_id
from rlhf.user_code import import_module

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HEAD_SETTINGS = "value_head.json"
HEAD_WEIGHTS = "value_head.safetensors"
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
USAGE = "rlhf.json"
"""How the model was prompted, and sampled from, where it was trained."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Transformers draws no bars inside: they would interleave with a run's own output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# ---------------------------------------------------------------------------------------------------------------- save


@no_progress_bars()
def save_language_model(
    directory: str | Path,
    module: PolicyModel | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: Mapping[str, Tensor] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Writes a folder that ``AutoModelForCausalLM.from_pretrained`` loads; a shared-trunk value head is left out.

    A model with adapters is saved as their settings say: merged, or the adapters alone, or both.

    Args:
        directory: Replaced as a whole, or not at all.
        module: The model; its weights are not read where ``state`` is given.
        tokenizer: Saved beside the model.
        state: Complete state dict of ``module``, such as an average's; tied weights may be there once or twice.
        generation: Settings of the ``GenerationConfig`` by its own names, such as ``top_p``. Temperature 0 is greedy.

    Raises:
        UserError: a weight is missing from ``state``, or a generation setting is unknown.
    """
    lm, prefix = (module.lm, "lm.") if isinstance(module, PolicyModel) else (module, "")
    lm = cast("PreTrainedModel", lm)
    weights = _weights(lm, state, prefix)
    config = _generation_config(lm, tokenizer, generation or {})
    with atomic_folder(directory) as folder:
        _write_weights(folder, lm, weights)
        tokenizer.save_pretrained(folder)
        config.save_pretrained(folder)  # after the model's own, which it replaces


@no_progress_bars()
def save_value_model(
    directory: str | Path,
    model: ValueModel,
    tokenizer: PreTrainedTokenizerBase,
    head: ValueHead,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a critic or reward model: ``AutoModel.from_pretrained`` loads the trunk, the head lies beside it.

    Args:
        directory: Replaced as a whole, or not at all.
        model: The model; its weights are not read where ``state`` is given.
        tokenizer: Saved beside the model.
        head: The component that built the head: kept by class path and settings, to build it again.
        state: Complete state dict of ``model``.

    Raises:
        UserError: a weight is missing from ``state``.
    """
    from safetensors.torch import save_file

    trunk = cast("PreTrainedModel", model.trunk)
    trunk_weights = _weights(trunk, state, "trunk.")
    head_weights = _weights(model.head, state, "head.")
    source = state or {}
    settings = {
        **_described(head),
        "mean": float(source.get("mean", model.mean)),
        "std": float(source.get("std", model.std)),
    }
    with atomic_folder(directory) as folder:
        _write_weights(folder, trunk, trunk_weights)
        tokenizer.save_pretrained(folder)
        save_file({name: tensor.contiguous() for name, tensor in head_weights.items()}, folder / HEAD_WEIGHTS)
        (folder / HEAD_SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def save_usage(directory: str | Path, template: Template, sampling: Any = None) -> None:
    """Writes beside a model how it was prompted in training, and how it was sampled from where it was.

    Args:
        directory: Folder of the saved model.
        template: How prompts and responses became tokens.
        sampling: The ``Sampling`` of its rollouts; None where there were none.
    """
    usage: dict[str, Any] = {"template": _described(template)}
    if sampling is not None:
        usage["sampling"] = dataclasses.asdict(sampling)
    atomic_text(Path(directory) / USAGE, json.dumps(usage, indent=2) + "\n")


def load_usage(directory: str | Path) -> tuple[Template | None, dict[str, Any]]:
    """The template and the settings of the sampling that :func:`save_usage` wrote; None and nothing without a file.

    Raises:
        UserError: the template's class cannot be imported.
    """
    path = Path(directory) / USAGE
    if not path.is_file():
        return None, {}
    usage = json.loads(path.read_text(encoding="utf-8"))
    return _component(path, usage["template"], Template), usage.get("sampling", {})


def _described(component: ValueHead | Template) -> dict[str, Any]:
    """A component by ``class_path`` and ``init_args``, for a file beside a model."""
    path = f"{type(component).__module__}.{type(component).__qualname__}"
    return {"class_path": path, "init_args": dataclasses.asdict(cast(Any, component))}


def _weights(module: nn.Module, state: Mapping[str, Tensor] | None, prefix: str) -> dict[str, Tensor]:
    """The weights to save, by the module's own names; each tied weight once, under its first name."""
    own = cast(dict[str, Tensor], module.state_dict())
    names = [name for name, _ in module.named_parameters()]
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = [name for name in own if name not in parameters]
    if state is None:
        return {name: own[name] for name in names + buffers}
    given = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if missing := [name for name in names if name not in given]:
        raise UserError(
            f"state: no weight {prefix}{missing[0]} ({len(missing)} of {len(names)} missing); "
            f"give the complete state dict of the {type(module).__name__}"
        )
    return {name: given[name] for name in names} | {name: given.get(name, own[name]) for name in buffers}


def _write_weights(folder: Path, module: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """The weights of a model, those of its adapters in the form that their settings ask for."""
    note = attached(module)
    if note is None:
        module.save_pretrained(folder, state_dict=weights)
        return
    if note.settings.export != "adapter":
        module.save_pretrained(folder, state_dict=adapter_files.merged(module, weights))
    if note.settings.export != "merged":
        beside = folder / adapter_files.BESIDE if note.settings.export == "both" else folder
        adapter_files.write_adapter(beside, module, note, weights)


def _generation_config(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]) -> Any:
    from transformers import GenerationConfig

    known = GenerationConfig().to_dict()
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UserError(f"generation: unknown setting {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    config = copy.deepcopy(lm.generation_config) or GenerationConfig()
    defaults = {"eos_token_id": config.eos_token_id or tokenizer.eos_token_id, "pad_token_id": pad_id(tokenizer)}
    greedy = settings.get("temperature") == 0
    sampling = {"do_sample": not greedy} if "temperature" in settings else {}
    dropped = ("temperature", "top_p", "top_k") if greedy else ()
    config.update(**{**defaults, **sampling, **{k: v for k, v in settings.items() if k not in dropped}})
    if greedy:
        config.update(temperature=None, top_p=None, top_k=None)
    return config


# ---------------------------------------------------------------------------------------------------------------- load


def check_model_folder(directory: str | Path) -> None:
    """Says which file a model folder lacks, before a library guesses at a repository of that name.

    Raises:
        UserError: the folder, or a file in it, does not exist.
        UserError: the path is a file.
    """
    folder = Path(directory)
    if not folder.exists():
        raise UserError(f"model path: {folder} does not exist; give the folder of a saved model")
    if not folder.is_dir():
        raise UserError(f"model path: {folder} is a file; give the folder it lies in")
    if adapter_files.is_adapter(folder):
        adapter_files.read_config(folder)
        return  # its base may have the tokenizer
    if not (folder / "config.json").is_file():
        raise UserError(f"model path: {folder} has no config.json; give the folder of a saved model")
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        raise UserError(f"model path: {folder} has no weights ({' or '.join(WEIGHTS)}); was the save complete?")
    if not any((folder / name).is_file() for name in TOKENIZER):
        raise UserError(f"model path: {folder} has no tokenizer.json; save the tokenizer beside the model")


def check_loaded(path: str | Path, info: Mapping[str, Any]) -> None:
    """Refuses a model some of whose weights were not in the folder: the library would leave them random."""
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"model path: {path} has no weights for {missing[0]} ({len(missing)} missing), which would stay random; "
            "save the model again, or give the path of a model of this kind"
        )


@no_progress_bars()
def load_value_model(directory: str | Path) -> tuple[ValueModel, PreTrainedTokenizerBase]:
    """Reads what :func:`save_value_model` wrote, head and normalisation included.

    Raises:
        UserError: the folder or a file in it is missing; there is never a random head.
        UserError: the head's class cannot be imported, or weights do not fit.
    """
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    folder = Path(directory)
    check_model_folder(folder)
    for name in (HEAD_SETTINGS, HEAD_WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(
                f"model path: {folder} has no {name}, so it is no reward model or critic; "
                "give the folder that reward modelling wrote"
            )
    with reading(folder, local=True):
        settings = json.loads((folder / HEAD_SETTINGS).read_text())
        trunk = _load_trunk(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        weights = load_file(folder / HEAD_WEIGHTS)
    head = _component(folder / HEAD_SETTINGS, settings, ValueHead).build(hidden_width(trunk))
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"model path: {folder / HEAD_WEIGHTS} does not fit {settings['class_path']}: {error}") from None
    return ValueModel(trunk, head, settings["mean"], settings["std"]), tokenizer


def _load_trunk(folder: Path) -> PreTrainedModel:
    """The trunk of a saved value model: its own, or that of a language model with an adapter merged into it."""
    from transformers import AutoModel, AutoModelForCausalLM

    if not adapter_files.is_adapter(folder):
        trunk, info = AutoModel.from_pretrained(folder, output_loading_info=True)
        check_loaded(folder, info)
        return trunk
    adapter = adapter_files.read_config(folder)
    base = cast(str, adapter.base_model_name_or_path)
    model, info = cast(Any, AutoModelForCausalLM).from_pretrained(base, output_loading_info=True)
    check_loaded(base, info)
    adapter_files.merge_adapter(model.base_model, folder, adapter)
    return model.base_model


def value_model_from(lm: LanguageModel, head: ValueHead, seed: int) -> ValueModel:
    """A critic or reward model that starts from a copy of a policy's trunk and a new head.

    Args:
        lm: The policy; it shares no weight with the answer.
        head: What reads the trunk.
        seed: For the head's weights.
    """
    if lm.module.base_model is lm.module:
        raise UserError(f"model: {type(lm.module).__name__} has no trunk under a language-model head")
    check_tokenizer(lm.tokenizer, lm.module)
    trunk = cast("PreTrainedModel", copy.deepcopy(lm.module.base_model))
    with seeded(seed):
        return ValueModel(trunk, head.build(hidden_width(trunk)))


def hidden_width(trunk: PreTrainedModel) -> int:
    """Width of the last hidden state: the embedding's, to which models with inner projections return."""
    return cast(Tensor, trunk.get_input_embeddings().weight).shape[1]


T = TypeVar("T")


def _component(file: Path, written: Mapping[str, Any], base: type[T]) -> T:
    """The component that a file beside a model describes by ``class_path`` and ``init_args``."""
    class_path = written["class_path"]
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (AttributeError, ValueError) as error:
        raise UserError(
            f"{file}: class_path {class_path} cannot be imported ({error}); "
            "run from the folder that holds it, or install its package"
        ) from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{file}: class_path {class_path} is not a {base.__name__}; was the file edited?")
    return cast(Any, found)(**written["init_args"])
