import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open
from tiny_models import FAMILIES, language_model, sequences
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import rlhf
from rlhf.data.templates import Plain
from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel, ValueHead
from rlhf.models.heads import MLP, Linear
from rlhf.models.modules import PolicyModel, ValueModel
from rlhf.models.storage import (
    load_template,
    load_value_model,
    save_language_model,
    save_value_model,
    value_model_from,
)
from rlhf.models.tokenizer import train_bpe

TOKENIZER = train_bpe(["the screen is great"] * 4, 270)
BATCH = sequences([[5, 6, 7, 8, 9], [20, 3, 41, 17, 2]], 2, left=1)


def policy(family: str, **settings) -> LanguageModel:
    lm = language_model(family, **settings)
    torch.manual_seed(1)
    lm.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    return LanguageModel(lm, TOKENIZER)


def one_step(module: torch.nn.Module, loss: torch.Tensor) -> None:
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()


# ------------------------------------------------------------------------------------------------------ language models


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_comes_back_with_its_ties(family, tmp_path):  # case F5
    lm = policy(family).module
    model = PolicyModel(lm)
    one_step(model, model(BATCH).logprobs.sum())
    save_language_model(tmp_path / "m", model, TOKENIZER)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    tied = again.get_output_embeddings().weight.data_ptr() == again.get_input_embeddings().weight.data_ptr()
    assert tied is (family != "llama")
    torch.testing.assert_close(PolicyModel(again)(BATCH).logprobs, model(BATCH).logprobs, atol=1e-6, rtol=0)
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert all(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert AutoTokenizer.from_pretrained(tmp_path / "m").get_vocab() == TOKENIZER.get_vocab()


@pytest.mark.parametrize("twice", [False, True])
def test_a_gathered_state_is_saved_in_place_of_the_weights(tmp_path, twice):
    model = PolicyModel(policy("gpt2").module, Linear().build(16))
    names = model.state_dict() if twice else dict(model.named_parameters())  # tied weights twice, or once
    state = {name: torch.full_like(tensor, 0.25).detach() for name, tensor in names.items()}
    before = model.lm.transformer.wte.weight.clone()
    save_language_model(tmp_path / "m", model, TOKENIZER, state=state)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert all((p == 0.25).all() for p in again.parameters())
    assert again.lm_head.weight is again.transformer.wte.weight
    assert torch.equal(model.lm.transformer.wte.weight, before)
    assert len(state) == len(names)


def test_an_incomplete_state_is_refused_and_nothing_written(tmp_path):
    model = PolicyModel(policy("gpt2").module)
    state = dict(model.state_dict())
    del state["lm.transformer.ln_f.weight"]
    with pytest.raises(ValueError, match=r"no weight lm.transformer.ln_f.weight \(1 of 28 missing\)"):
        save_language_model(tmp_path / "m", model, TOKENIZER, state=state)
    assert not list(tmp_path.iterdir())


def test_the_generation_config_has_end_ids_pad_and_sampling(tmp_path):
    lm = policy("gpt2").module
    settings = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 12, "eos_token_id": [1, 5]}
    save_language_model(tmp_path / "m", lm, TOKENIZER, generation=settings)
    config = GenerationConfig.from_pretrained(tmp_path / "m")
    assert (config.do_sample, config.temperature, config.top_p, config.max_new_tokens) == (True, 0.7, 0.9, 12)
    assert (config.eos_token_id, config.pad_token_id) == ([1, 5], 0)
    save_language_model(tmp_path / "m", lm, TOKENIZER, generation={"temperature": 0, "top_p": 0.9})
    config = GenerationConfig.from_pretrained(tmp_path / "m")
    assert not config.do_sample
    assert (config.eos_token_id, config.pad_token_id) == (1, 0)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert again.generate(torch.tensor([[5, 6]]), max_new_tokens=3).shape[1] <= 5
    with pytest.raises(ValueError, match=r"generation: unknown setting 'temprature'; did you mean temperature\?"):
        save_language_model(tmp_path / "m", lm, TOKENIZER, generation={"temprature": 1.0})


# --------------------------------------------------------------------------------------------------------- value models


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", [Linear(init_std=0.5), MLP(hidden=5, layers=2, activation="tanh")])
def test_a_value_model_comes_back(family, head, tmp_path):  # cases F5, D7
    model = value_model_from(policy(family), head, 3)
    model.set_normalisation(1.25, 0.8)
    one_step(model, model(BATCH).values.sum())
    save_value_model(tmp_path / "rm", model, TOKENIZER, head)
    again, tokenizer = load_value_model(tmp_path / "rm")
    assert (again.mean.item(), again.std.item()) == (1.25, pytest.approx(0.8))
    for name in ("values", "scores"):
        a, b = (getattr(m(BATCH, want=(name,)), name) for m in (model, again))
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
        assert a.abs().max() > 0.1
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab()
    trunk = AutoModel.from_pretrained(tmp_path / "rm")
    assert all(torch.equal(a, b) for a, b in zip(trunk.parameters(), model.trunk.parameters(), strict=True))


@pytest.mark.slow
def test_a_fresh_process_reads_the_same_score(tmp_path):  # case F5
    model = value_model_from(policy("gpt2"), Linear(init_std=0.5), 3)
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(init_std=0.5))
    code = (
        "import sys, torch; from rlhf.models.storage import load_value_model; from rlhf.types import Sequences\n"
        "ids = torch.tensor([[5, 6, 7]]); model, _ = load_value_model(sys.argv[1])\n"
        "print(model(Sequences(ids, ids > 0, 1), want=('scores',)).scores.item())"
    )
    root = Path(rlhf.__file__).parents[1]
    run = [sys.executable, "-c", code, str(tmp_path / "rm")]
    answer = subprocess.run(run, capture_output=True, text=True, check=True, cwd=root)
    right = model(sequences([[5, 6, 7]], 1), want=("scores",)).scores.item()
    assert float(answer.stdout) == pytest.approx(right, abs=1e-6)


def test_a_value_models_state_is_saved_with_its_normalisation(tmp_path):
    model = value_model_from(policy("gpt2"), Linear(), 3)
    state = {name: torch.full_like(tensor, 0.5) for name, tensor in model.state_dict().items()}
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(), state=state)
    again, _ = load_value_model(tmp_path / "rm")
    assert all((tensor == 0.5).all() for tensor in again.state_dict().values())
    assert model.mean.item() == 0.0
    del state["head.layers.0.weight"]
    with pytest.raises(ValueError, match=r"no weight head\.layers\.0\.weight"):
        save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(), state=state)


def test_a_bf16_value_model_comes_back_with_its_fp32_head(tmp_path):  # case D6
    model = value_model_from(policy("llama", dtype=torch.bfloat16), Linear(init_std=0.5), 3)
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(init_std=0.5))
    again, _ = load_value_model(tmp_path / "rm")
    assert again.trunk.dtype == torch.bfloat16
    assert again.head.layers[0].weight.dtype == torch.float32
    assert torch.equal(again(BATCH).values, model(BATCH).values)


def test_a_folder_without_its_head_is_named_and_never_given_a_random_one(tmp_path):  # case H3
    save_language_model(tmp_path / "m", policy("gpt2").module, TOKENIZER)
    with pytest.raises(UserError, match=r"m has no value_head\.json"):
        load_value_model(tmp_path / "m")
    save_value_model(tmp_path / "rm", value_model_from(policy("gpt2"), Linear(), 3), TOKENIZER, Linear())
    (tmp_path / "rm" / "value_head.safetensors").unlink()
    with pytest.raises(UserError, match=r"rm has no value_head\.safetensors"):
        load_value_model(tmp_path / "rm")
    with pytest.raises(UserError, match="missing does not exist"):
        load_value_model(tmp_path / "missing")


@pytest.mark.parametrize(("changes", "message"), [
    ({"class_path": "no_such.Head"}, "no_such.Head cannot be imported"), ({"class_path": "Head"}, "cannot be imported"),
    ({"class_path": "pathlib.Path"}, "is not a ValueHead"),
    ({"init_args": {"bias": False}}, "does not fit rlhf.models.heads.Linear"),
])  # fmt: skip
def test_a_head_that_does_not_fit_is_refused(changes, message, tmp_path):
    save_value_model(tmp_path / "rm", value_model_from(policy("gpt2"), Linear(), 3), TOKENIZER, Linear())
    file = tmp_path / "rm" / "value_head.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        load_value_model(tmp_path / "rm")


def test_the_template_of_the_training_is_kept(tmp_path):
    model = value_model_from(policy("gpt2"), Linear(), 3)
    template = Plain(prompt_format="Q: {prompt}", end="t")
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(), template=template)
    assert load_template(tmp_path / "rm") == template
    file = tmp_path / "rm" / "value_head.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"template": {"class_path": "pathlib.Path", "init_args": {}}}))
    with pytest.raises(ValueError, match=r"pathlib\.Path is not a Template"):
        load_template(tmp_path / "rm")
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear())
    with pytest.raises(ValueError, match=r"value_head\.json names no template"):
        load_template(tmp_path / "rm")


@dataclass(frozen=True, kw_only=True)
class Doubled(ValueHead):
    """A researcher's own head, in their own file.

    Args:
        factor: Of the sum of the states.
    """

    factor: float = 2.0

    def build(self, width):
        layer = torch.nn.Linear(width, 1, bias=False)
        torch.nn.init.constant_(layer.weight, self.factor)
        return torch.nn.Sequential(layer, torch.nn.Flatten(-2))


def test_a_researchers_own_head_is_found_by_its_class_path(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, Doubled.__module__, sys.modules[__name__])
    model = value_model_from(policy("gpt2"), Doubled(factor=3.0), 1)
    save_value_model(tmp_path / "rm", model, TOKENIZER, Doubled(factor=3.0))
    settings = json.loads((tmp_path / "rm" / "value_head.json").read_text())
    assert settings["init_args"] == {"factor": 3.0}
    again, _ = load_value_model(tmp_path / "rm")
    assert torch.equal(again(BATCH).values, model(BATCH).values)


def test_a_value_model_copies_the_trunk_and_draws_its_head_from_the_seed():
    lm = policy("llama")
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    model = value_model_from(lm, Linear(), 3)
    assert torch.equal(torch.rand(2), expected)
    trunk = cast(Any, lm.module).model
    for ours, theirs in zip(model.trunk.parameters(), trunk.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()
    weights = [value_model_from(lm, Linear(), seed).head.layers[0].weight for seed in (3, 3, 4)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    with pytest.raises(ValueError, match="LlamaModel has no trunk"):
        value_model_from(LanguageModel(trunk, lm.tokenizer), Linear(), 3)
    assert isinstance(model, ValueModel)
