"""What a person may give by mistake, through the command: a message with value, place and remedy, and code 1 or 2.

Nothing is half done after a mistake: no stage of the run is taken for finished, and none for begun that was not.
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_runs
import yaml

from rlhf.algorithms.sft import SFT
from rlhf.errors import UserCodeError
from rlhf.run import main

SETTINGS = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
SCRATCH = {"class_path": "FromScratch", "init_args": {"config": SETTINGS, "vocab_size": 258}}
ROWS = [{"prompt": f"{letter}=", "response": "xyz"} for letter in "abcdefghij"]
PAIRS = [{"prompt": f"{letter}=", "chosen": "xyz", "rejected": "XYZ"} for letter in "abcdefghij"]


def data(path, **settings):
    source = {"class_path": "Files", "init_args": {"path": str(path)}}
    return {"sources": {"rows": source}, "eval_rows": 2, "max_tokens": 32, **settings}


def sft(path="rows.jsonl", policy=SCRATCH, limits=None, **settings):
    return {
        "class_path": "SFT",
        "init_args": {"policy": policy, "data": data(path, **limits or {}), "steps": 2, **settings},
    }


def pretrained(path):
    return {"class_path": "Pretrained", "init_args": {"path": str(path)}}


def ppo(path="rows.jsonl", reward="tiny_runs.letters", policy=SCRATCH, limits=None, **settings):
    usual = {"sampling": {"max_new_tokens": 4}, "batch_size": 4, "mini_batch_size": 4, "iterations": 1}
    function = (
        {"class_path": "FunctionReward", "init_args": {"function": reward}} if isinstance(reward, str) else reward
    )
    needed = {"policy": policy, "reward": function, "data": data(path, **limits or {})}
    return {"class_path": "PPO", "init_args": {**needed, **usual, **settings}}


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def nans(prompts, responses):
    return [float("nan")] * len(responses)


def one(prompts, responses):
    return [1.0]


def leaving(prompts, responses):
    sys.exit(0)


def torn_rows():
    yield {"prompt": "a", "response": "b"}
    yield {}["x"]


def leaving_rows():
    sys.exit(0)


def raising(prompts, responses):
    raise KeyError("gold")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A policy and a reward model that are whole."""
    directory = tmp_path_factory.mktemp("models")
    lines(directory / "rows.jsonl", ROWS)
    lines(directory / "pairs.jsonl", PAIRS)
    pairs = {"policy": None, "model": SCRATCH}
    reward = sft(directory / "pairs.jsonl", **pairs)
    reward = {"class_path": "RewardModelling", "init_args": {k: v for k, v in reward["init_args"].items() if v}}
    config = {
        "name": "whole",
        "output_dir": str(directory),
        "stages": {"sft": sft(directory / "rows.jsonl"), "rm": reward},
    }
    (directory / "whole.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", str(directory / "whole.yaml"), "--quiet"]) == 0
    return directory / "whole"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlhf.summary.draw_curves", lambda *_: None)  # seconds that no test here looks at
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    lines(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Runs stages through the command: exit code and message."""

    def run(*stages, arguments=(), **named):
        config = {
            "name": "toy",
            "output_dir": "runs",
            "stages": {f"s{n}": stage for n, stage in enumerate(stages)} | named,
        }
        (here / "exp.yaml").write_text(yaml.safe_dump(config))
        capsys.readouterr()
        code = main(["--config", "exp.yaml", *arguments])
        return code, capsys.readouterr().err

    return run


def refused(answer, code, *parts):
    assert answer[0] == code
    for part in parts:
        assert part in answer[1]
    assert "Traceback" not in answer[1]


# ------------------------------------------------------------------------------------------------------------ config


# case H1
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "exp.yaml"),
        ("", "exp.yaml: is empty"),
        ("# nothing\n", "exp.yaml: is empty"),
        ("- sft\n- ppo\n", "exp.yaml: holds a list; its top level must be keys"),
        ("name: [", "exp.yaml: is not YAML"),
        ("name: toy\n", "stages"),
        ("name: toy\nstages: {}\n", "stages"),
        ("name: toy\nstages: {sft: {class_path: SFTT}}\n", "Did you mean SFT?"),
    ],
)
def test_config_files(here, capsys, text, message):
    if text is not None:
        (here / "exp.yaml").write_text(text)
    code = main(["--config", "exp.yaml"])
    refused((code, capsys.readouterr().err), 2, message)
    assert not (here / "runs").exists()


def test_a_folder_for_a_config(here, capsys):
    code = main(["--config", str(here)])
    refused((code, capsys.readouterr().err), 2, f"{here}: cannot be read: [Errno 21] Is a directory")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"learning_ratee": 1}, ["stages.s0.learning_ratee: SFT has no setting 'learning_ratee'"]),
        ({"batch_size": "many"}, ["stages.s0.batch_size: 'many' is not of type int"]),
        ({"batch_size": 2.5}, ["stages.s0.batch_size: 2.5 is not of type int"]),
        ({"batch_size": None}, ["stages.s0.batch_size: "]),
        ({"batch_size": 0}, ["stages.s0.batch_size: is 0; must be at least 1"]),
        (
            {"optimizer": {"class_path": "AdamW", "init_args": {"lr": "fast"}}},
            ["stages.s0.optimizer.lr: 'fast' is not of"],
        ),
        (
            {"optimizer": {"class_path": "AdamW", "init_args": {"lr": -1.0}}},
            ["stages.s0.optimizer (AdamW): lr is -1.0; must be at least 0"],
        ),
        ({"optimizer": "Adam"}, ["No Optimizer is called 'Adam'", "Did you mean AdamW?"]),
        # case H4
        (
            {"batch_size": 6, "engine": {"class_path": "Local", "init_args": {"micro_batch_size": 4}}},
            ["6 % 4 = 2, not 0"],
        ),
    ],
)
def test_settings(run, here, settings, parts):
    refused(run(sft(**settings)), 2, *parts)
    assert not (here / "runs").exists()


# case H2
def test_words_for_booleans(run, here):
    refused(run(sft(packing="maybe")), 2, "stages.s0.packing: 'maybe' is not of type bool")
    assert run(sft(packing=True), arguments=["--stages.s0.packing", "no", "--quiet"])[0] == 0
    assert yaml.safe_load((here / "runs/toy/config.yaml").read_text())["stages"]["s0"]["init_args"]["packing"] is False


def test_references(run):
    refused(run(sft(policy=pretrained("@ppo"))), 2, "stages.s0.policy.path: no earlier stage leaves '@ppo'")


# ------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("prepare", "path", "parts"),
    [
        (None, "rowz.jsonl", ["stages.s0.data.sources.rows: rowz.jsonl: no such file or folder", "correct the path"]),
        (lambda p: (p / "empty.jsonl").touch(), "empty.jsonl", ["empty.jsonl: the file is empty"]),
        (lambda p: (p / "d").mkdir(), "d", ["d: a folder without", "it holds nothing"]),
        (
            lambda p: (p / "rows.xls").write_text("x"),
            "rows.xls",
            ["rows.xls: unknown suffix '.xls'; set format to one of"],
        ),
        (
            lambda p: (p / "cut.jsonl").write_text('{"prompt": "a"}\n{"prompt'),
            "cut.jsonl",
            ["cut.jsonl: cannot be read"],
        ),
        (lambda p: (p / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}'), "latin.jsonl", ["line 1 is not UTF-8"]),
        (lambda p: (p / "list.json").write_text("[]"), "list.json", ["list.json"]),
    ],
)
def test_data_files(run, here, prepare, path, parts):
    if prepare:
        prepare(here)
    known = not (path.endswith((".jsonl", ".json")) and (here / path).is_file() and (here / path).stat().st_size)
    refused(run(sft(path)), 2 if known else 1, *parts)  # before the first stage, or where it is read
    assert not (here / "runs/toy/s0").exists()


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (
            lambda n: {"question": f"{n}", "answer": "b"},
            ["sources.rows: no column prompt, messages or text among question, answer; rename with columns"],
        ),
        (
            lambda n: {"prompt": f"{n}"},
            ["sources.rows", "which needs (prompt, response)", "its columns are prompt, good"],
        ),
        (
            lambda n: {"prompt": f"{n}", "response": "b", "label": "good" if n == 6 else "true"},
            ["sources.rows, row 7: label is 'good'; give true or 1 for a good response, false, 0 or -1 for a bad one"],
        ),
        (
            lambda n: {"prompt": f"{n}", "response": "b", "label": n % 3 - 1},
            ["sources.rows: label is 0 in row 2 and -1 in row 1, so that nobody can say which of them is bad"],
        ),
        (lambda n: {"prompt": n, "response": "b"}, ["sources.rows", "prompt is a int, not text; quote it"]),
        (
            lambda n: {"prompt": [f"{n}"], "response": "b"},
            ["sources.rows", "prompt: a message is a str; give {role"],
        ),
        (lambda n: {"prompt": f"{n}", "response": None}, ["sources.rows: of its 8 training rows none is left", "8"]),
    ],
)
def test_columns_and_types_of_rows(run, here, row, parts):
    lines(here / "rows.jsonl", [row(n) for n in range(10)])
    refused(run(sft()), 1, "stage s0: ", *parts)
    assert not (here / "runs/toy/s0").exists()


def test_prompts_that_are_all_over_the_limit(run, here):  # case G4
    lines(here / "rows.jsonl", [{"prompt": f"{n}" * 20} for n in range(5)])
    answer = run(ppo(limits={"max_prompt_tokens": 4}))
    refused(
        answer, 1, "stage s0: sources.rows: of its", "included: long_prompt", "max_tokens, max_prompt_tokens and long_p"
    )
    assert not (here / "runs/toy/s0").exists()


def text(letter, length):
    return letter * length


@pytest.fixture
def log(here, capsys):
    """What a run says, and the figures it leaves."""

    def log(stage, rows):
        lines(here / "rows.jsonl", rows)
        shutil.rmtree(here / "runs", ignore_errors=True)
        (here / "exp.yaml").write_text(yaml.safe_dump({"name": "toy", "stages": {"s0": stage}}))
        capsys.readouterr()
        assert main(["--config", "exp.yaml"]) == 0
        return capsys.readouterr().out, tiny_runs.metrics(here / "runs/toy/s0")

    return log


def test_prompts_over_the_limit_are_dropped_and_counted(log):  # case G4
    stage = ppo(limits={"max_prompt_tokens": 16, "eval_rows": 0}, batch_size=2, mini_batch_size=2)
    said, figures = log(stage, [{"prompt": text("a", n)} for n in (5, 16, 17, 40)])
    assert "s0: rows: 2 for training, 0 held out; 2 dropped (long_prompt 2)" in said
    assert figures[-1]["data/rows_dropped"] == 2


@pytest.mark.parametrize("batch_size", [1, 5])
def test_truncation_and_empty_responses(log, batch_size):  # case G3
    lengths = [(4, 5), (30, 5), (18, 5), (6, 0), (10, 5)]
    stage = sft(limits={"max_tokens": 20, "eval_rows": 0}, batch_size=batch_size, steps=None, epochs=1.0)
    said, figures = log(stage, [{"prompt": text("a", p), "response": text("b", r)} for p, r in lengths])
    assert "1 dropped (long_prompt 1); 2 kept but cut or empty (truncated_response 1, empty_response 1)" in said
    assert len(figures) == -(-4 // batch_size) and all(line["loss"] > 0 for line in figures)


def test_the_rows_of_a_mixture_are_told_as_the_stages_own(log):
    texts = data("rows.jsonl", eval_rows=1, max_tokens=8)
    mixture = {"class_path": "Mixture", "init_args": {"data": texts}}
    stage = ppo(limits={"eval_rows": 0}, mixture=mixture)
    said, _ = log(stage, [{"prompt": f"{n}", "response": text("b", 8 if n else 2)} for n in range(5)])
    assert "s0: rows: 5 for training" in said and "s0.mixture: rows: " in said and "(long_text 4)" in said


def test_a_file_of_which_nothing_is_left(run, here):  # case G3
    lines(here / "rows.jsonl", [{"prompt": text("a", 30), "response": f"{n}"} for n in range(3)])
    answer = run(sft(limits={"max_tokens": 20, "eval_rows": 0}))
    refused(
        answer, 1, "of its 3 training rows none is left (dropped, held out ones included: long_prompt 3); see max_t"
    )


def test_pairs_that_are_identical_or_are_after_truncation(log):  # case D1
    same = {"prompt": "a", "chosen": "bb", "rejected": "bb"}
    after = {"prompt": "a", "chosen": text("b", 8) + "x", "rejected": text("b", 8) + "y"}
    last = {"prompt": "a", "chosen": text("b", 6) + "x", "rejected": text("b", 6) + "y"}
    normal = {"prompt": "a", "chosen": "x", "rejected": "y"}
    stage = sft(limits={"max_tokens": 8, "eval_rows": 0}, policy=None)
    settings = {name: value for name, value in stage["init_args"].items() if value is not None}
    stage = {"class_path": "RewardModelling", "init_args": {**settings, "model": SCRATCH, "steps": 1}}
    said, figures = log(stage, [normal, same, after, last])
    assert "2 dropped (identical_pair 1, identical_after_truncation 1)" in said
    assert figures[0]["data/rows_dropped"] == 2


def test_responses_that_the_model_has_no_positions_for(run):
    told = "max_new_tokens: is 100, but the model has 64 positions (max_position_embeddings), a prompt included; lower"
    refused(run(ppo(sampling={"max_new_tokens": 100})), 2, f"stages.s0.sampling.{told}")
    refused(run(ppo(evaluation={"sampling": {"max_new_tokens": 100}})), 2, f"stages.s0.evaluation.sampling.{told}")
    left = ppo(policy=pretrained("@s0"), sampling={"max_new_tokens": 100})
    refused(run(sft(), left), 2, f"stages.s1.sampling.{told}")  # before s0 is run
    lines(Path("rows.jsonl"), [{"prompt": "abcde="[n % 5 :]} for n in range(10)])
    answer = run(ppo(sampling={"max_new_tokens": 59}))  # there is room for five tokens of a prompt
    refused(answer, 1, "stage s0: sampling.max_new_tokens: is 59, but", "the longest prompt, of 6 tokens, included")


BLEND = "rlhf.data.blenders.Weighted"


def scratch(**settings):
    return {"class_path": "FromScratch", "init_args": {"config": {**SETTINGS, **settings}, "vocab_size": 258}}


def trained(path, **settings):
    return {"class_path": "Pretrained", "init_args": {"path": path, **settings}}


@pytest.mark.parametrize(
    ("stage", "parts"),
    [
        (sft(policy=scratch(model_type="gtp2")), ["s1.policy: config.model_type: gtp2 is unknown; did you mean gpt2?"]),
        (sft(policy=scratch(n_laier=2)), ["s1.policy: config.n_laier: gpt2 has no such setting; did you mean n_layer"]),
        (sft(policy=scratch(n_head=3)), ["s1.policy: config: gpt2 makes no causal language model", "divisible"]),
        (sft(policy=trained("@s0", trainable_layers=9)), ["s1.policy: trainable_layers: 9, but GPT2LMHeadModel has 1"]),
        (
            sft(policy=trained("@s0", lora={"target_modules": ["q_proj"]})),
            ["s1.policy: target_modules: 'q_proj' is no linear layer of GPT2LMHeadModel, which has c_attn, c_fc"],
        ),
        (
            ppo(policy=trained("@s0"), reference=scratch(n_head=5)),
            ["s1.reference: config: gpt2 makes no causal language model"],
        ),
        (
            ppo(policy=trained("@s0"), critic={"class_path": "OwnTrunk", "init_args": {"trainable_layers": 5}}),
            ["s1.critic: trainable_layers: 5, but GPT2Model has 1 blocks"],
        ),
        (
            sft(limits={"blender": {"class_path": BLEND, "init_args": {"weights": {"row": 1}}}}),
            ["s1.data (Data): blender: weights: ['row'] but the sources are ['rows']; name each once"],
        ),
        (
            sft(limits={"blender": {"class_path": "Curriculum", "init_args": {"lessons": [{"weights": {"row": 1}}]}}}),
            ["s1.data (Data): blender: lessons.0.weights.row: the sources are rows"],
        ),
    ],
)
def test_what_cannot_work_is_known_before_the_first_stage(run, here, stage, parts):
    answer = run(sft(), stage)
    refused(answer, 2, *(f"stages.{part}" if part.startswith("s1") else part for part in parts))
    assert not (here / "runs/toy/s0").exists()


def wants_gold(prompts, responses, gold):
    return [0.0] * len(responses)


@pytest.mark.parametrize("where", ["reward", "evaluation"])
@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ({"class_path": "ArithmeticReward"}, "column: the source rows has no column answer; columns there: response"),
        (
            {"class_path": "FunctionReward", "init_args": {"function": "test_bad_input.wants_gold"}},
            "function: test_bad_input.wants_gold needs gold, which is neither in arguments nor a column of the data",
        ),
    ],
)
def test_columns_that_a_reward_needs_are_known_before_a_prompt_is_answered(run, monkeypatch, where, reward, told):
    monkeypatch.setattr("rlhf.loops.online.OnlineTrainer.sample", lambda *_, **__: pytest.fail("sampled"))
    both = {"class_path": "rlhf.models.rewards.Weighted", "init_args": {"models": {"a": reward}, "weights": {"a": 1}}}
    stage = ppo(reward=both) if where == "reward" else ppo(evaluation={"every": 1, "rewards": {"gold": reward}})
    place = "reward: models.a" if where == "reward" else "evaluation.rewards.gold"
    refused(run(stage), 1, f"stage s0: {place}: {told}")


# case H3
@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda m: shutil.rmtree(m), ["does not exist; give the folder of a saved model"]),
        (lambda m: (shutil.rmtree(m), m.write_text("x")), ["is a file; give the folder it lies in"]),
        (lambda m: (m / "config.json").unlink(), ["has no config.json"]),
        (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
        (
            lambda m: (m / "model.safetensors").unlink(),
            ["has no weights (model*.safetensors or", "was the save complete?"],
        ),
        (lambda m: (m / "model.safetensors").write_bytes(b"half"), ["model", "cannot be read"]),
        (lambda m: (m / "tokenizer.json").write_text("{"), ["model", "cannot be read"]),
        (lambda m: [p.unlink() for p in m.glob("*token*")], ["has no tokenizer.json"]),
    ],
)
def test_model_folders(run, here, models, damage, parts):
    shutil.copytree(models / "sft/model", here / "model")
    damage(here / "model")
    answer = run(sft(policy=pretrained("./model")))
    assert answer[0] == (2 if "  stages.s0.policy: " in answer[1] else 1)  # before the first stage, or when loaded
    refused(answer, answer[0], "path: ", "model", *parts)
    assert "repo" not in answer[1] and not (here / "runs/toy/s0").exists()


# case H3
def test_models_of_another_kind(run, here, models):
    scalar = {"class_path": "ScalarReward", "init_args": {"path": str(models / "sft/model")}}
    policy = pretrained(models / "sft/model")
    refused(run(ppo(policy=policy, reward=scalar)), 1, "has no value_head.json, so it is no reward model or critic")
    refused(
        run(sft(policy=pretrained(models / "rm/model"))), 1, "is a reward model or critic; give the folder of a lang"
    )
    other = {"class_path": "OwnTrunk", "init_args": {"path": str(models / "rm/model")}}
    lines(here / "rows.jsonl", [{"prompt": f"{n} questions questions="} for n in range(10)])
    merging = {**SCRATCH, "init_args": {**SCRATCH["init_args"], "vocab_size": 270}}
    refused(run(ppo(critic=other, policy=merging)), 1, "has another vocabulary than the policy")


# case H3
def test_a_hub_name_without_a_network(run, monkeypatch):
    start = time.monotonic()
    answer = run(sft(), sft(policy=pretrained("no-such-model")))
    assert time.monotonic() - start < 10
    refused(
        answer, 2, "stages.s1.policy: path: no-such-model is no folder in ", "hub does not answer", "check the spelling"
    )


# ------------------------------------------------------------------------------------------------------------ rewards


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (
            "test_bad_input.nans",
            ["stage s0: function: test_bad_input.nans answered nan, no finite number, for '", "such as 0"],
        ),
        ("test_bad_input.one", ["stage s0: function: test_bad_input.one answered 1 scores for 4 responses"]),
        ("test_bad_input.nowhere", ["stages.s0.reward: function: test_bad_input.nowhere cannot be imported"]),
        (
            "test_bad_input.ROWS",
            ["stages.s0.reward: function: test_bad_input.ROWS is [", "give something that can be called"],
        ),
    ],
)
def test_reward_functions(run, here, function, parts):
    refused(run(ppo(reward=function)), 2 if parts[0].startswith("stages.") else 1, *parts)
    assert not (here / "runs/toy/s0/model").exists() and not (here / "runs/toy/s0/done.json").exists()


def test_what_a_reward_function_raises_is_told_by_its_own_lines(run, monkeypatch):
    answer = run(ppo(reward="test_bad_input.raising"))
    told = "stage s0: function: test_bad_input.raising, given 4 responses, raised KeyError: 'gold'"
    refused(answer, 1, told, "test_bad_input.py, line", 'in raising: raise KeyError("gold")')
    assert len(answer[1].splitlines()) == 3
    monkeypatch.setenv("RLHF_TRACEBACK", "1")
    with pytest.raises(UserCodeError, match="raising"):
        run(ppo(reward="test_bad_input.raising"))


def test_a_reward_function_that_asks_the_program_to_end(run, here):
    answer = run(ppo(reward="test_bad_input.leaving"))
    refused(answer, 1, "stage s0: function: test_bad_input.leaving, given 4 responses, raised SystemExit: 0 (it asked")
    assert not (here / "runs/toy/s0/done.json").exists()


def test_functions_that_cannot_be_imported_for_what_they_hold(run, here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    (here / "torn_rewards.py").write_text("def score(prompts, responses)\n    return 1\n")
    parts = ["stages.s0.reward: function: torn_rewards.score cannot be imported: importing torn_rewards raised Syntax"]
    refused(run(ppo(reward="torn_rewards.score")), 2, *parts, "torn_rewards.py, line 1: def score(prompts, responses)")


@pytest.mark.parametrize(("function", "raised"), [("torn_rows", "KeyError: 'x'"), ("leaving_rows", "SystemExit: 0")])
def test_what_a_source_of_ones_own_raises_names_it_and_the_stage(run, here, function, raised):
    source = {"class_path": "Generator", "init_args": {"function": f"test_bad_input.{function}"}}
    answer = run(sft(limits={"sources": {"mine": source}}))
    refused(answer, 1, f"stage s0: data.sources.mine: function: test_bad_input.{function} raised {raised}", "line ")
    assert not (here / "runs/toy/s0").exists()


@dataclass(frozen=True, kw_only=True)
class Unfinished(SFT):
    """A class of one's own."""

    def loss(self, outputs, batch):
        raise NotImplementedError("not yet")


def test_what_a_class_of_ones_own_raises_is_told_by_its_own_lines(run):
    stage = {**sft(), "class_path": "test_bad_input.Unfinished"}
    told = "stage s0: code of your own raised NotImplementedError: not yet"
    refused(run(stage), 1, told, 'in loss: raise NotImplementedError("not yet")', "RLHF_TRACEBACK=1 shows")


# ------------------------------------------------------------------------------------------------------- run folders


def test_a_folder_of_another_config(run, here):
    assert run(sft(), arguments=["--quiet"]) == (0, "")
    before = (here / "runs/toy/config.yaml").read_text()
    answer = run(sft(batch_size=4))
    refused(answer, 1, "runs/toy/s0 holds a stage that was run otherwise", "batch_size: 32 → 4", "--overwrite")
    assert (here / "runs/toy/config.yaml").read_text() == before


def test_an_output_folder_that_cannot_be_made(run):
    answer = run(sft(), arguments=["--output_dir", "/proc/x"])
    refused(answer, 2, "output_dir: /proc/x/toy cannot be made (No such file or directory); give another")


def test_a_file_for_the_output_folder(run, here):
    (here / "runs").write_text("x")
    refused(run(sft()), 2, "output_dir: runs is a file, so no folder can be made there; give another")


@pytest.mark.parametrize(("file", "content"), [("stage.json", "{"), ("done.json", "")])
def test_files_of_a_run_that_were_damaged(run, here, file, content):
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    (here / "runs/toy/s0" / file).write_text(content)
    answer = run(sft(save_every=1, steps=3))
    refused(answer, 1, f"runs/toy/s0/{file}")


def test_checkpoints_of_a_run_that_were_damaged(run, here, capsys):  # case F6
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    stage = here / "runs/toy/s0"
    for file, said in (
        ("latest", "latest names 'step_9', which is not there; going on from step_2"),
        ("step_2/state.pt", "step_2 is damaged: state.pt has 6 bytes, and"),
    ):
        (stage / "done.json").unlink()
        (stage / "checkpoints" / file).write_text("step_9")
        assert main(["--config", "exp.yaml"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    (stage / "done.json").unlink()
    for step in (1, 2):
        (stage / f"checkpoints/step_{step}/state.pt").write_text("half")
    refused(run(sft(save_every=1, steps=3)), 1, "step_1 is damaged", "no other to go on from", "--resume never")
    assert run(sft(save_every=1, steps=3), arguments=["--quiet", "--resume", "never"]) == (0, "")


def test_resuming_from_a_wrong_path(run, here):
    refused(run(sft(), arguments=["--resume", "nowhere"]), 1, "--resume: nowhere is no folder", "auto, never")
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    answer = run(sft(save_every=1, steps=3), arguments=["--name", "b", "--resume", "runs/toy/s0"])
    refused(answer, 1, "runs/toy/s0 holds checkpoints and is none; give one of runs/toy/s0/checkpoints/step_1")
    refused(run(sft(), arguments=["--overwrite", "s1"]), 1, "--overwrite: no stage is called 's1'; there are s0")


def test_replay(run, here):
    refused(run(ppo(replay="nowhere")), 2, "stages.s0: replay: nowhere is no folder")
    assert run(ppo(save_rollouts="all"), arguments=["--quiet", "--name", "first"])[0] == 0
    file = here / "runs/first/s0/rollouts/iteration_000001.jsonl"
    assert run(ppo(replay=str(file.parent)), arguments=["--quiet"])[0] == 0
    file.write_text(file.read_text()[:-20])
    answer = run(ppo(replay=str(file.parent)), arguments=["--name", "second"])
    refused(answer, 1, "iteration_000001.jsonl line 4 is not JSON", "is the file cut?")


# ---------------------------------------------------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(here):
    """A disk with little room; ``grow()`` makes it large. Skipped where this process may not mount one."""
    disk = here / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk]).returncode:
        pytest.skip("needs the right to mount a file system")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)

    yield disk, resize
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_full_while_saving(here, small_disk, capsys):  # case F6
    disk, resize = small_disk
    config = {"name": "toy", "stages": {"s0": sft(save_every=1, steps=4, batch_size=4)}}
    (here / "exp.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", "exp.yaml", "--quiet", "--output_dir", "whole"]) == 0
    one = sum(path.stat().st_size for path in (here / "whole/toy/s0/checkpoints/step_3").iterdir())
    resize(int(2.6 * one))  # room for two checkpoints, and two are kept while the third is written
    command = ["--config", "exp.yaml", "--quiet", "--output_dir", str(disk)]
    assert main(command) == 1
    error = capsys.readouterr().err
    checkpoints = disk / "toy/s0/checkpoints"
    assert f"No space left on device: '{checkpoints / 'step_3'}'. Make room, and run the same command again" in error
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_1", "step_2"]
    assert (checkpoints / "latest").read_text() == "step_2" and not (disk / "toy/s0/done.json").exists()
    resize("64m")
    assert main(command[:2] + command[3:]) == 0
    assert "s0: continues from step 2" in capsys.readouterr().out
    assert tiny_runs.same_weights(disk / "toy/s0/model", here / "whole/toy/s0/model")
    assert tiny_runs.metrics(disk / "toy/s0") == tiny_runs.metrics(here / "whole/toy/s0")


def test_a_disk_that_is_full_while_the_model_is_saved(here, small_disk, capsys):  # case F6
    disk, resize = small_disk
    (here / "exp.yaml").write_text(yaml.safe_dump({"name": "toy", "stages": {"s0": sft()}}))
    resize("48k")
    command = ["--config", "exp.yaml", "--quiet", "--output_dir", str(disk)]
    assert main(command) == 1
    assert f"No space left on device: '{disk / 'toy/s0/model'}'. Make room" in capsys.readouterr().err
    assert not (disk / "toy/s0/model").exists() and not (disk / "toy/s0/done.json").exists()
    resize("64m")
    assert main(command) == 0
    assert (disk / "toy/s0/model/model.safetensors").exists()
