"""The settings of evaluations: what is refused before anything runs."""

import pytest
import tiny_runs

from rlhf import EMA, Averaged, Best, BestAtK, Distinct, Evaluation, Last, Mixture, PassAtK, Perplexity, Sampling
from rlhf.algorithms.evaluation import named

LETTERS = tiny_runs.LETTERS


def problems(**settings):
    return tiny_runs.ppo(**settings).check()


def test_a_figure_that_is_alone_is_called_as_its_metric():
    assert named("words", {"2": 0.5}) == {"words": 0.5}
    assert named("words", {"1": 0.1, "2": 0.5}) == {"words/1": 0.1, "words/2": 0.5}
    assert named("wins", {"": 0.5, "error": 0.1}) == {"wins": 0.5, "wins/error": 0.1}


def test_metrics_that_fit_have_no_problems():
    metrics = {"words": Distinct(), "best": BestAtK(), "right": PassAtK(judge=LETTERS)}
    assert problems(evaluation=Evaluation(every=1, metrics=metrics)) == []


@pytest.mark.parametrize("data", [{"eval_rows": 0}, {"eval_rows": None, "eval_fraction": 0.0}])
def test_evaluations_need_held_out_prompts(data):
    found = problems(data=tiny_runs.data("prompt", **data), evaluation=Evaluation(every=2))
    assert [text.partition(";")[0] for text in found] == ["evaluation.every: is 2, but data holds out no prompt"]
    assert problems(data=tiny_runs.data("prompt", **data)) == []


def test_rows_held_out_otherwise_are_held_out():
    assert tiny_runs.data("prompt", eval_rows=None).holds_out
    assert tiny_runs.data("prompt", eval_rows=0, eval_sources={"own": tiny_runs.source("prompt")}).holds_out


@pytest.mark.parametrize("name", ["score", "kl", "distinct_2", "ema", "gold_score", "score_std"])
def test_names_that_are_taken_are_refused(name):
    (found,) = problems(evaluation=Evaluation(every=1, metrics={name: Distinct()}))
    assert found.startswith(f"evaluation.metrics.{name}: ") and "another name" in found


@pytest.mark.parametrize("name", ["a/b", ""])
def test_names_that_make_no_figure_are_refused(name):
    (found,) = problems(evaluation=Evaluation(every=1, metrics={name: Distinct()}))
    assert found.startswith(f"evaluation.metrics: {name!r} cannot be a metric's name") and "without a slash" in found


def test_metrics_without_evaluations_are_refused():
    (found,) = problems(evaluation=Evaluation(metrics={"words": Distinct()}))
    assert found.startswith("evaluation.metrics: has words, but evaluation.every is 0")


def test_several_greedy_responses_are_refused():
    greedy = Sampling(greedy=True, max_new_tokens=8)
    right = PassAtK(judge=LETTERS, samples=4, k=[2])
    (found,) = problems(evaluation=Evaluation(every=1, sampling=greedy, metrics={"right": right}))
    assert found.startswith("evaluation.metrics.right.samples: is 4, but the evaluation samples greedily")
    own = BestAtK(samples=4, k=[2], sampling=Sampling(max_new_tokens=8))
    one = BestAtK(samples=1, k=[1])
    assert problems(evaluation=Evaluation(every=1, sampling=greedy, metrics={"own": own, "one": one})) == []


def test_a_metrics_own_problems_have_their_place():
    texts = Perplexity(data=tiny_runs.data("text", eval_rows=0))
    (found,) = problems(evaluation=Evaluation(every=1, metrics={"tax": texts}))
    assert found.startswith("evaluation.metrics.tax.data: holds out no text")


def test_room_for_the_responses_of_metrics_is_looked_at():
    long = BestAtK(sampling=Sampling(max_new_tokens=100))
    algorithm = tiny_runs.ppo(evaluation=Evaluation(every=1, metrics={"best": long}))
    (found,) = algorithm.check_positions(64)
    assert found.startswith("evaluation.metrics.best.sampling.max_new_tokens: is 100, but the model has 64 positions")


def test_judges_by_their_place():
    settings = Evaluation(rewards={"gold": LETTERS}, metrics={"a": BestAtK(), "b": PassAtK(judge=LETTERS)})
    assert list(settings.judges()) == ["evaluation.rewards.gold", "evaluation.metrics.b.judge"]


def test_which_weights_can_be_selected():
    metrics = {"words": Distinct(), "best": BestAtK(k=[4])}
    settings = Evaluation(every=1, rewards={"gold": LETTERS}, metrics=metrics)
    for name in ("score", "gold_score", "score_std", "kl", "length", "words/2", "best", "score/part", "gold_score/x"):
        assert problems(evaluation=settings, select=Best(metric=name)) == [], name
        assert problems(evaluation=settings, select=Best(metric=f"ema/{name}"), averaging=EMA()) == [], name
    mixture = Mixture(data=tiny_runs.data("text"))
    assert problems(evaluation=settings, select=Best(metric="mixture_loss"), mixture=mixture) == []
    assert problems(select=Averaged(), averaging=EMA()) == problems(select=Last()) == []


@pytest.mark.parametrize(("settings", "said"), [
    ({"select": Averaged()}, "select.class_path: is Averaged, but averaging is null; set averaging: EMA"),
    ({"select": Best()}, "select.metric: is 'score', but evaluation.every is 0"),
    ({"select": Best(metric="ema/score"), "evaluation": Evaluation(every=1)}, "averaging: EMA, or metric: score"),
    ({"select": Best(metric="gold"), "evaluation": Evaluation(every=1, rewards={"gold": LETTERS})},
     "no evaluation has the figure 'gold'; did you mean gold_score? Known: distinct_2, gold_score, gold_score_std, kl, "
     "length, score, score_std, truncated_fraction"),
    ({"select": Best(metric="kl"), "kl": None, "evaluation": Evaluation(every=1)}, "no evaluation has the figure 'kl'"),
    ({"select": Best(metric="mixture_loss"), "evaluation": Evaluation(every=1)}, "the figure 'mixture_loss'"),
    ({"select": Best(metric="best/4"), "evaluation": Evaluation(every=1, metrics={"best": BestAtK(k=[4])})},
     "did you mean best?"),
])  # fmt: skip
def test_which_cannot(settings, said):
    (found,) = problems(**settings)
    assert found.startswith("select.") and said in found
