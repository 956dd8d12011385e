"""From the folder that a person names to the model that is meant."""

from __future__ import annotations

from pathlib import Path

from rlhf.errors import UserError
from rlhf.models.adapter_files import is_adapter
from rlhf.models.policy import looks_local
from rlhf.models.storage import HEAD_SETTINGS, check_model_folder
from rlhf.yaml_files import read_yaml


def is_model(folder: Path) -> bool:
    """Whether a folder holds a saved model of any kind."""
    return (folder / "config.json").is_file() or is_adapter(folder)


def is_language_model(folder: Path) -> bool:
    """Whether a folder holds a saved model that writes."""
    return is_model(folder) and not (folder / HEAD_SETTINGS).exists()


def find_model(path: str, *, ema: bool = False) -> str:
    """The folder of the language model that a path means.

    Args:
        path: A model's folder, a stage's (its ``model/``), a run's (that of its last stage that has one), or a name on
            the hub.
        ema: Take the averaged policy, ``ema/``, instead of ``model/``.

    Raises:
        UserError: there is no such folder, or nothing in it that can talk.
    """
    folder = Path(path).expanduser()
    output = "ema" if ema else "model"
    if not looks_local(str(folder)) and not ema:
        return path
    if is_model(folder):
        if not ema or folder.name == "ema":
            return str(folder)
        folder = folder.parent
    if (folder / "config.yaml").is_file():
        return str(_of_run(folder, output))
    if (folder / "stage.json").is_file():
        return str(_of_stage(folder, output))
    if ema and folder.exists():
        raise UserError(f"--ema: {folder} is neither a stage nor a run; name the averaged model's folder itself")
    check_model_folder(folder)
    return str(folder)


def find_reward_model(path: str) -> str:
    """The folder of the reward model that a path means: its own, or its stage's.

    Raises:
        UserError: there is no model there.
    """
    folder = Path(path).expanduser()
    folder = _of_stage(folder, "model") if (folder / "stage.json").is_file() else folder
    check_model_folder(folder)
    return str(folder)


def _of_run(run: Path, output: str) -> Path:
    """The newest output of that kind in a run."""
    stages = list(read_yaml(run / "config.yaml").get("stages") or {})
    for stage in reversed(stages):
        if is_language_model(run / stage / output):
            return run / stage / output
    what = "an averaged policy (ema/)" if output == "ema" else "a language model (model/)"
    raise UserError(f"{run}: none of its stages ({', '.join(stages)}) has left {what} yet; is the run finished?")


def _of_stage(stage: Path, output: str) -> Path:
    folder = stage / output
    if is_model(folder):
        return folder
    there = ", ".join(sorted(path.name for path in stage.iterdir() if is_model(path))) or "no model"
    hint = "; the average is there where the stage sets averaging" if output == "ema" else "; is the stage finished?"
    raise UserError(f"{stage} has no {output}/ (it has {there}){hint}")
