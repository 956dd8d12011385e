"""Likelihoods as lm-evaluation-harness asks for them; and, where it is installed, its tasks on the toy policy."""

import importlib.machinery
import importlib.util
import json
import math

import pytest
import tiny_runs
import torch

from rlhf import EMA, Best, Evaluation, LMEval
from rlhf.algorithms import harness
from rlhf.algorithms.harness import Likelihoods, Text, figures_of
from rlhf.errors import UserError
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.online import OnlineTrainer

INSTALLED = importlib.util.find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not INSTALLED, reason="needs the extra lm-eval")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return OnlineTrainer(tiny_runs.ppo(), tiny_runs.context(tmp_path_factory.mktemp("harness")))


@pytest.fixture
def pretended(monkeypatch):
    """The package seems to be there."""
    spec = importlib.machinery.ModuleSpec("lm_eval", None, origin="somewhere")
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: spec)


def by_hand(trainer, context, ids):
    with torch.no_grad():
        logits = trainer.policy.model.lm(torch.tensor([context + ids])).logits[0].double().log_softmax(-1)
    rows = range(len(context) - 1, len(context) + len(ids) - 1)
    return sum(float(logits[row, token]) for row, token in zip(rows, ids, strict=True)), all(
        int(logits[row].argmax()) == token for row, token in zip(rows, ids, strict=True)
    )


TEXTS = [
    Text([5, 6, 7, 8, 9], [10, 11]),
    Text([12], [13]),
    Text([14, 15], [16, 17, 18, 19, 20, 21, 22]),
    Text([23, 24, 25], [26, 27]),
]


@pytest.mark.parametrize("rows_at_once", [1, 3, 64])
def test_likelihoods_are_those_of_the_model_however_they_are_cut(trainer, rows_at_once):
    likelihoods = Likelihoods(trainer.tokenizer, 64, rows_at_once)
    found = likelihoods(trainer.policy, TEXTS, greedy=True)
    for (value, greedy), text in zip(found, TEXTS, strict=True):
        expected, most = by_hand(trainer, text.context, text.ids)
        assert value == pytest.approx(expected, rel=1e-5) and greedy is most


def test_what_is_most_probable_is_greedy(trainer):
    with torch.no_grad():
        best = trainer.policy.model.lm(torch.tensor([[5, 6]])).logits[0, -1].argmax().item()
    likelihoods = Likelihoods(trainer.tokenizer, 64, 64)
    found = likelihoods(trainer.policy, [Text([5, 6], [best]), Text([5, 6], [best, best]), TEXTS[0]], greedy=True)
    assert found[0][1] is True and [most for _, most in found[1:]] == [
        by_hand(trainer, [5, 6], [best, best])[1],
        by_hand(trainer, *TEXTS[0])[1],
    ]
    assert not any(most for _, most in likelihoods(trainer.policy, [Text([5, 6], [best])], greedy=False))


def test_few_rows_where_the_vocabulary_is_large(trainer, monkeypatch):
    monkeypatch.setattr(harness, "MOST_LOGITS", 3 * 280)
    likelihoods, sizes = Likelihoods(trainer.tokenizer, 64, 64), []
    honest = trainer.policy.evaluate

    def counted(batches, **settings):
        sizes.extend(len(batch) for batch in batches)
        return honest(batches, **settings)

    monkeypatch.setattr(trainer.policy, "evaluate", counted)
    vocabulary = trainer.policy.model.lm.config.vocab_size
    found = likelihoods(trainer.policy, TEXTS, greedy=True)
    assert len(found) == 4 and max(sizes) <= max(3 * 280 // vocabulary, 1)


def test_long_contexts_lose_their_beginning_and_long_texts_are_refused(trainer):
    likelihoods = Likelihoods(trainer.tokenizer, 8, 64)
    ((value, _),) = likelihoods(trainer.policy, [Text([40] * 9 + [5, 6, 7, 8, 9], [10, 11, 12])], greedy=False)
    assert value == pytest.approx(by_hand(trainer, [5, 6, 7, 8, 9], [10, 11, 12])[0], rel=1e-5)
    with pytest.raises(UserError, match="a text has 8 tokens, but the model has 8 positions"):
        likelihoods(trainer.policy, [Text([5], [6] * 8)], greedy=False)


def test_an_empty_text_is_certain_and_no_text_is_no_pass(trainer):
    likelihoods = Likelihoods(trainer.tokenizer, 64, 64)
    assert likelihoods(trainer.policy, [Text([5], [])], greedy=True) == [(0.0, True)]
    assert likelihoods(trainer.policy, [], greedy=True) == []


def test_results_by_name():
    results = {
        "arc": {"alias": "arc", "acc,none": 0.5, "acc_stderr,none": "N/A", "em,strict": 1, "sample_len": 3},
        "two": {"ppl,none": math.inf, "acc_stderr,none": 0.1},
    }
    assert figures_of(results) == {"arc/acc": 0.5, "arc/em_strict": 1.0, "two/ppl": math.inf}


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"LMEval: the package lm_eval is missing; pip install 'rlhf\[lm-eval\]'"):
        LMEval(tasks=["arc_easy"])


@pytest.mark.parametrize(("settings", "said"), [
    ({"tasks": []}, r"tasks is \[\]; name at least one"),
    ({"tasks": ["a"], "limit": 0}, "limit is 0; must be at least 1"),
    ({"tasks": ["a"], "shots": -1}, "shots is -1; must be at least 0"),
])  # fmt: skip
def test_settings_out_of_range(pretended, settings, said):
    with pytest.raises(UserError, match=said):
        LMEval(**settings)


def test_its_folder_is_looked_at_before_anything_runs(pretended, tmp_path):
    with pytest.raises(UserError, match=r"include_path: .*nowhere is no folder"):
        LMEval(tasks=["a"], include_path=str(tmp_path / "nowhere")).check_inputs()
    assert LMEval(tasks=["a"]).fingerprint() is None
    (tmp_path / "a.yaml").write_text("task: a")
    one = LMEval(tasks=["a"], include_path=str(tmp_path))
    before = one.fingerprint()
    one.check_inputs()
    (tmp_path / "a.yaml").write_text("task: b")
    assert before is not None and one.fingerprint() != before


def test_weights_can_be_selected_by_figures_that_are_not_known_yet(pretended):
    settings = Evaluation(every=1, metrics={"harness": LMEval(tasks=["arc_easy"])})
    assert tiny_runs.ppo(evaluation=settings, select=Best(metric="harness/arc_easy/acc")).check() == []
    (found,) = tiny_runs.ppo(evaluation=settings, select=Best(metric="harness")).check()
    assert "no evaluation has the figure 'harness'" in found


# --------------------------------------------------------------------------------------------------------- the harness

DOCUMENTS = [
    {"question": "ab=", "choices": ["xyz", "XYZ", "123"], "answer": 0},
    {"question": "cd=", "choices": ["XX", "yzx", "12"], "answer": 1},
    {"question": "ea=", "choices": ["zz", "QQ", "77"], "answer": 2},
]
LONG = " and more of it, so that it is longer than the positions of the tiny policy by far and far again"
TASKS = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}" + LONG,
        "metric_list": [{"metric": "byte_perplexity", "aggregation": "weighted_perplexity"}],
    },
    "written": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[0]}}",
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder with tasks of our own, whose data are a file."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, task in TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(documents)}}}
        whole = {"task": f"toy_{name}", **data, "test_split": "test", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML
    return str(folder)


@needs_harness
def test_tasks_on_the_policy_and_its_average(tmp_path, tasks):
    metric = LMEval(tasks=["toy_choice", "toy_rolling"], include_path=tasks)
    settings = {"evaluation": Evaluation(every=1, prompts=2, metrics={"harness": metric}), "averaging": EMA(decay=1.0)}
    trainer = OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path / "stage"))
    evaluate = Evaluator(trainer)
    before = evaluate()
    assert before == evaluate()

    def of(text):
        return trainer.tokenizer.encode(text, add_special_tokens=False)

    right = 0
    for row in DOCUMENTS:
        values = [by_hand(trainer, of(row["question"]), of(choice))[0] for choice in row["choices"]]
        right += values.index(max(values)) == row["answer"]
    assert before["eval/harness/toy_choice/acc"] == pytest.approx(right / 3)
    assert 1 < before["eval/harness/toy_rolling/byte_perplexity"] < math.inf
    trainer.train_rlhf(trainer.generate_experience())
    after = evaluate()
    name = "toy_rolling/byte_perplexity"
    assert after[f"eval/ema/harness/{name}"] == pytest.approx(before[f"eval/harness/{name}"])
    assert after[f"eval/harness/{name}"] != before[f"eval/harness/{name}"]


@needs_harness
@pytest.mark.parametrize(("names", "said"), [
    (["toy_written"], "tasks: toy_written is of the kind generate_until; only loglikelihood"),
    (["toy_none"], "tasks: toy_none cannot be loaded .*toy_none"),
])  # fmt: skip
def test_tasks_that_cannot_be_asked_for(tmp_path, tasks, names, said):
    settings = Evaluation(every=1, prompts=2, metrics={"harness": LMEval(tasks=names, include_path=tasks)})
    trainer = OnlineTrainer(tiny_runs.ppo(evaluation=settings), tiny_runs.context(tmp_path / "stage"))
    with pytest.raises(UserError, match=rf"evaluation\.metrics\.harness: {said}"):
        Evaluator(trainer)
