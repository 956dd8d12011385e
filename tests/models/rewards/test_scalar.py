from typing import Any, cast

import pytest
import torch
from tiny_models import ForwardEngine, language_model, rollout

from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel
from rlhf.models.heads import Linear
from rlhf.models.rewards import ScalarReward
from rlhf.models.storage import save_language_model, save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe
from rlhf.types import Sequences

TOKENIZER = train_bpe(["the screen is great"] * 4, 270)
ENGINE = ForwardEngine()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    lm = language_model("gpt2")
    lm.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    model = value_model_from(LanguageModel(lm, TOKENIZER), Linear(init_std=1.0), 3)
    model.set_normalisation(1.0, 2.0)
    path = tmp_path_factory.mktemp("reward") / "model"
    save_value_model(path, model, TOKENIZER, Linear(init_std=1.0))
    return path, model.eval()


def test_scores_are_read_at_the_last_real_token_of_the_sampled_ids(trained):
    path, model = trained
    scorer = ScalarReward(path=str(path)).build(ENGINE, TOKENIZER)
    answer = scorer(rollout(["a", "b", "c", "d", "e"]))
    assert answer.total.shape == (5,)
    assert not answer.total.requires_grad
    assert cast(Any, scorer).engine.batch_sizes == [2, 2, 1]
    for row in range(5):  # prompt 5 6, then row + 1 tokens 7, 8, 9 …
        ids = torch.tensor([[5, 6, *range(7, 8 + row)]])
        alone = model(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 2), want=("scores",)).scores
        raw = model.head(model.trunk(input_ids=ids).last_hidden_state[:, -1])
        assert answer.total[row].item() == pytest.approx(alone.item(), abs=1e-5)
        assert answer.total[row].item() == pytest.approx((raw.item() - 1.0) / 2.0, abs=1e-5)


def test_another_vocabulary_is_refused(trained):
    other = train_bpe(["something else entirely"] * 4, 270)
    with pytest.raises(ValueError, match=r"another vocabulary than the policy \(\d+ tokens differ: .* in the policy\)"):
        ScalarReward(path=str(trained[0])).build(ENGINE, other)


def test_a_folder_without_a_head_is_refused(tmp_path):  # case H3
    save_language_model(tmp_path / "m", language_model("gpt2"), TOKENIZER)
    with pytest.raises(UserError, match=r"has no value_head\.json"):
        ScalarReward(path=str(tmp_path / "m")).build(ENGINE, TOKENIZER)
    with pytest.raises(ValueError, match="path: it is empty"):
        ScalarReward(path="")
