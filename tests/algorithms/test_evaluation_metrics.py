"""What metrics measure, on a policy that is really sampled from."""

import gc
import math
import weakref
from dataclasses import dataclass

import pytest
import tiny_runs
import torch

from rlhf import (
    EMA,
    BestAtK,
    Distinct,
    Evaluation,
    FunctionReward,
    PassAtK,
    Perplexity,
    Pretrained,
    Sampling,
    WinRate,
)
from rlhf.algorithms.functional.evaluation import best_at_k, pass_at_k
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import RewardModel
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.held_out import STRIDE
from rlhf.loops.online import OnlineTrainer
from rlhf.models.storage import save_language_model
from rlhf.types import Scores

SHORT = FunctionReward(function="test_evaluation_metrics.short")


def short(prompts, responses):
    return [float(-len(response)) for response in responses]


@dataclass(frozen=True, kw_only=True)
class Broken(RewardModel):
    """Scores nothing with a number."""

    def build(self, engine, tokenizer):
        return lambda rollout: Scores(torch.full((len(rollout),), math.nan))


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])


def evaluator(directory, metrics, **settings):
    settings = {"evaluation": Evaluation(every=1, prompts=4, metrics=metrics), **settings}
    trainer = OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(directory))
    return trainer, Evaluator(trainer)


def train(trainer):
    trainer.train_rlhf(trainer.generate_experience())


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The policy that the toy stages start from, on disk."""
    folder = tmp_path_factory.mktemp("start")
    trainer = OnlineTrainer(tiny_runs.ppo(), tiny_runs.context(folder))
    save_language_model(folder / "model", trainer.policy.model, trainer.tokenizer)
    return Pretrained(path=str(folder / "model"))


# ----------------------------------------------------------------------------------------------------------- win rates


def test_a_policy_that_has_not_moved_wins_half(tmp_path, start):
    _, evaluate = evaluator(tmp_path, {"wins": WinRate(against=start)}, policy=start)
    figures = evaluate()
    assert (figures["eval/wins"], figures["eval/wins/error"], figures["eval/wins/ties"]) == (0.5, 0.0, 1.0)


def test_wins_are_counted_by_the_judge(tmp_path, start):
    metrics = {"wins": WinRate(against=start), "short": WinRate(against=start, judge=SHORT)}
    trainer, evaluate = evaluator(tmp_path, metrics, policy=start, averaging=EMA(decay=1.0))
    opponent = trainer.sample(evaluate.prompts, seed=evaluate.setup.seed)
    for _ in range(2):
        train(trainer)
    figures = evaluate()
    own = trainer.sample(evaluate.prompts, seed=evaluate.setup.seed)
    for name, score in (("wins", tiny_runs.letters), ("short", short)):
        pairs = list(zip(score([], own.text), score([], opponent.text), strict=True))
        expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / 4
        assert figures[f"eval/{name}"] == expected
    assert own.text != opponent.text and figures["eval/wins/ties"] < 1
    # an average that never moves is the opponent
    assert figures["eval/ema/wins"] == 0.5 and figures["eval/ema/wins/ties"] == 1.0


def test_the_opponent_is_sampled_once_and_let_go_of(tmp_path, start, monkeypatch):
    built, honest = [], Pretrained.build

    def counted(self, *arguments, **settings):
        model = honest(self, *arguments, **settings)
        built.append(weakref.ref(model.module))
        return model

    monkeypatch.setattr(Pretrained, "build", counted)
    _, evaluate = evaluator(tmp_path, {"wins": WinRate(against=start)})
    gc.collect()
    assert evaluate() == evaluate()
    assert [model() for model in built] == [None]


def test_an_opponent_of_another_vocabulary_is_refused(tmp_path):
    other = tiny_runs.SameTokenizer(config=tiny_runs.policy().config, vocab_size=300, form="demonstration")
    with pytest.raises(UserError, match=r"evaluation\.metrics\.wins: against: its model has another vocabulary"):
        evaluator(tmp_path, {"wins": WinRate(against=other)})


# ------------------------------------------------------------------------------------------------------ several samples


def sampled(trainer, evaluate, count):
    """[P, count] letters in the responses, drawn by hand."""
    rows = [
        trainer.sample(evaluate.prompts, seed=evaluate.setup.seed, first_counter=number * STRIDE).text
        for number in range(count)
    ]
    return torch.tensor([tiny_runs.letters([], texts) for texts in rows]).T


def test_pass_at_k_and_best_at_k_are_of_the_samples(tmp_path):
    metrics = {
        "right": PassAtK(judge=tiny_runs.LETTERS, threshold=2.0, k=[1, 2, 5], samples=5),
        "best": BestAtK(k=[1, 3], samples=3),
        "one": BestAtK(k=[1], samples=1, judge=SHORT),
    }
    trainer, evaluate = evaluator(tmp_path, metrics)
    figures, scores = evaluate(), sampled(trainer, evaluate, 5)
    for k in (1, 2, 5):
        assert figures[f"eval/right/{k}"] == pytest.approx(float(pass_at_k(scores >= 2, k=k).mean()))
    for k in (1, 3):
        assert figures[f"eval/best/{k}"] == pytest.approx(float(best_at_k(scores[:, :3], k=k).mean()))
    assert 0 < figures["eval/right/1"] < figures["eval/right/5"] and figures["eval/best/3"] > figures["eval/best/1"]
    assert figures["eval/one"] < 0
    assert figures == evaluate()  # paired


def test_the_first_sample_is_the_evaluations_own(tmp_path):
    _, evaluate = evaluator(tmp_path, {"best": BestAtK(k=[1], samples=1)})
    figures = evaluate()
    assert figures["eval/best"] == figures["eval/score"]


def test_own_sampling(tmp_path):
    cold = Sampling(max_new_tokens=2, temperature=0.5)
    metrics = {"best": BestAtK(k=[1], samples=2, judge=SHORT, sampling=cold)}
    _, evaluate = evaluator(tmp_path, metrics)
    figures = evaluate()
    assert figures["eval/best"] >= -2 * 4 and figures["eval/length"] > 2


def test_scores_that_are_not_finite_are_told(tmp_path):
    _, evaluate = evaluator(tmp_path, {"best": BestAtK(judge=Broken())})
    with pytest.raises(NonFiniteError, match=r"evaluation\.metrics\.best: reward: the score is nan for 4 of 4"):
        evaluate()


@pytest.mark.parametrize(("settings", "said"), [
    ({"k": [1, 9]}, r"k is \[1, 9\], but 9 of 8 samples cannot be chosen; give numbers from 1 to samples, or raise"),
    ({"k": [0]}, r"k is \[0\], but 0 of 8"),
    ({"k": []}, r"k is \[\]; name at least one"),
    ({"k": [2, 2]}, r"each number once"),
    ({"samples": 0}, "samples is 0; must be at least 1"),
])  # fmt: skip
def test_numbers_that_cannot_be_chosen_are_refused(settings, said):
    for make in (lambda: BestAtK(**settings), lambda: PassAtK(judge=SHORT, **settings)):
        with pytest.raises(UserError, match=said):
            make()


def test_what_is_correct_must_be_said():
    with pytest.raises(TypeError, match="judge"):
        PassAtK()  # pyright: ignore
    with pytest.raises(UserError, match="threshold is nan"):
        PassAtK(judge=SHORT, threshold=math.nan)


# ---------------------------------------------------------------------------------------------------- words and texts


def test_distinct_is_of_the_responses(tmp_path):
    trainer, evaluate = evaluator(tmp_path, {"words": Distinct(n=[1, 2]), "pairs": Distinct(n=[2])})
    figures = evaluate()
    rollout = trainer.sample(evaluate.prompts, seed=evaluate.setup.seed)
    tokens = rollout.sequences.response_ids[rollout.mask].tolist()
    assert figures["eval/words/1"] == len(set(tokens)) / len(tokens)
    assert figures["eval/words/2"] == figures["eval/pairs"] == figures["eval/distinct_2"]


@pytest.mark.parametrize("n", [[], [0], [1, 1]])
def test_lengths_that_are_no_lengths_are_refused(n):
    with pytest.raises(UserError, match=r"n is \["):
        Distinct(n=n)


def test_perplexity_is_of_the_held_out_texts(tmp_path):
    texts = tiny_runs.data("text", 20, eval_rows=6)
    metrics = {"tax": Perplexity(data=texts, texts=5), "all": Perplexity(data=texts, texts=None)}
    trainer, evaluate = evaluator(tmp_path, metrics, averaging=EMA(decay=1.0))
    figures = evaluate()
    prepared = texts.prepare(trainer.tokenizer, form="text", phase="ppo")
    rows = [list(row.ids) for row in prepared.heldout]
    loss, count = 0.0, 0
    for number, ids in enumerate(rows):
        with torch.no_grad():
            logits = trainer.policy.model.lm(torch.tensor([ids])).logits.log_softmax(-1)
        loss -= float(logits[0, :-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum())
        count += len(ids) - 1
        if number == 4:
            assert figures["eval/tax"] == pytest.approx(math.exp(loss / count), rel=1e-4)
    assert len(rows) == 6 and figures["eval/all"] == pytest.approx(math.exp(loss / count), rel=1e-4)
    train(trainer)
    later = evaluate()
    assert later["eval/ema/tax"] == pytest.approx(figures["eval/tax"]) and later["eval/tax"] != figures["eval/tax"]


def test_perplexity_needs_texts_that_the_model_can_read(tmp_path):
    with pytest.raises(UserError, match="texts is 0; must be at least 1"):
        Perplexity(data=tiny_runs.data("text"), texts=0)
    few = tiny_runs.data("text", 4, eval_rows=None, eval_fraction=0.01)  # none, to the nearest whole number
    with pytest.raises(UserError, match=r"evaluation\.metrics\.tax: data: no text is held out"):
        evaluator(tmp_path, {"tax": Perplexity(data=few)})
