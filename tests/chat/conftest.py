"""A tiny model, saved as a run leaves it."""

import dataclasses

import pytest
import tiny_runs

from rlhf.chat.loading import load_speaker
from rlhf.data.templates import Plain
from rlhf.engines.inference import Sampling
from rlhf.models.storage import save_language_model, save_usage

TEMPLATE = Plain(prompt_format="Q{prompt}A")
SAMPLING = Sampling(max_new_tokens=6, temperature=1.5, stop_tokens=["a"])


def save(folder, *, seed=0, template=TEMPLATE, sampling=SAMPLING, **settings):
    policy = dataclasses.replace(tiny_runs.policy(), **settings) if settings else tiny_runs.policy()
    model = policy.build(lambda: tiny_runs.data("demonstration").corpus("sft"), seed=seed)
    save_language_model(folder, model.module, model.tokenizer)
    if template is not None:
        save_usage(folder, template, sampling)
    return folder


@pytest.fixture
def saved():
    """Saves a tiny model as a run leaves it; see ``save``."""
    return save


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    """A stage's folder with model/ and ema/, which differ."""
    folder = tmp_path_factory.mktemp("runs") / "toy" / "ppo"
    save(folder / "model", seed=1)
    save(folder / "ema", seed=2)
    (folder / "stage.json").write_text("{}")
    (folder.parent / "config.yaml").write_text("name: toy\nstages: {ppo: {}}\n")
    return folder


@pytest.fixture
def speaker(stage):
    return load_speaker(str(stage / "model"), name="one")
