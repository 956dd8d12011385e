"""What a comparison says, read as a person reads it."""

import io
import json

import pytest
from rich.console import Console
from run_folders import config, curve, evaluation, simple, stage

from rlhf.report.compare import read_both
from rlhf.report.compare_tables import CHANCE, print_comparison


@pytest.fixture
def said(tmp_path):
    """What is printed of two runs of one stage, given by their lines; its text with single spaces."""

    def make(a, b, *, keys=("x", "y"), done=(True, True), width=300):
        for name, lines, finished, key in zip("ab", (a, b), done, keys, strict=True):
            config(tmp_path / name, {"ppo": {"class_path": "rlhf.PPO", "init_args": {"lr": name}}})
            stage(tmp_path / name / "ppo", lines, done=finished)
            (tmp_path / name / "ppo" / "stage.json").write_text(json.dumps({"key": key, "versions": {"torch": "2"}}))
        return printed(tmp_path / "a", tmp_path / "b", width)

    return make


def printed(a, b, width=300):
    file = io.StringIO()
    print_comparison(read_both(a, b), Console(file=file, width=width))
    return " ".join(file.getvalue().replace("│", " ").replace("┃", " ").split())


def score(*values, **more):
    return [{"step": n, "iteration": n, "eval/score": value, **more} for n, value in enumerate(values)]


def test_all_of_it(tmp_path):
    folders = [simple(tmp_path / name, lr=lr, response=name) for name, lr in (("eins", 1e-3), ("zwei", 2e-3))]
    lines = [{"step": n, "iteration": n, "eval/score": n / 2 + (n == 2), "kl/sequence": n} for n in (1, 2)]
    stage(folders[1] / "ppo", lines, done=False).joinpath("done.json").unlink()
    text = printed(folders[0], folders[1])
    assert text.startswith(f"A: {folders[0]} B: {folders[1]} settings that differ")
    assert " stages.ppo.optimizer.lr 0.001 0.002 " in text
    assert "Not recorded of sft, ppo: the code, the packages" in text
    assert "sft: SFT The same result: every figure is equal in 2 lines of metrics.jsonl, times and memory" in text
    assert "A is finished at iteration 2; B is unfinished at iteration 2. Figures are read where" in text
    assert "Equal until iteration 1: at iteration 2, eval/score differs first (1 and 2). That is 1 of the 2" in text
    assert " eval/score Score on held-out prompts 1 2 +1 " in text
    assert "1 last figure is equal: kl/sequence. Only A has mine/own." in text
    assert "at iteration 2, the last evaluation of both: 1 of 2 are the same, letter for letter." in text
    assert " ppo seconds 75 - - " in text
    assert text.endswith(CHANCE)


def test_deviations_have_a_column_where_there_are_any(said):
    text = said(score(0.0, 1.0, **{"eval/score_std": 2.0}), score(0.0, 4.0, **{"eval/score_std": 2.0}))
    assert "B - A in SD" in text and " 1 4 +3 +1.5 " in text and "in SD: B - A by the deviation over responses" in text
    assert "in SD" not in said(score(0.0, 1.0), score(0.0, 4.0))


def test_titles_beside_the_figures_in_a_wide_terminal_only(said):
    rows = score(0.0, 1.0), score(0.0, 4.0)
    assert "Score on held-out prompts" in said(*rows, width=120) and "Score on held" not in said(*rows, width=119)


def test_equal_runs_are_few_lines_and_no_word_of_chance(said):
    for text in (said(score(1.0), score(1.0)), said(score(1.0), score(1.0), keys=("x", "x"))):
        assert "last figures" not in text and "differs first" not in text and CHANCE not in text
        assert "The same result: every figure is equal in 1 line of metrics.jsonl, times and memory left aside" in text
    assert "left aside, though other things went in." in said(score(1.0), score(1.0))
    lines = score(1.0, **{"time/train": 1.0})
    assert "The same stage: every figure is equal in 1 line of metrics.jsonl, times included." in said(lines, lines)
    assert "what it cost" not in said(lines, lines)


def test_one_key_and_other_figures_is_worth_a_line(said):
    assert "Both have one key, so their figures ought to be equal." in said(score(1.0), score(2.0), keys=("x", "x"))
    assert "Both have one key" not in said(score(1.0), score(2.0))
    assert "Both have one key" not in said(score(1.0), score(1.0), keys=("x", "x"))


def test_values_that_look_alike_have_the_digits_that_tell_them_apart(said):
    assert "eval/score differs first (0.1234567 and 0.1234568)" in said(score(0.1234567), score(0.1234568))
    assert "(0.1 and 0.10000000000000002)" in said(score(0.1), score(0.10000000000000002))


def test_what_is_no_number(said):
    text = said(score(1.0, None), score(1.0, 2.0))
    assert " NaN 2 - " in text and "differs first (NaN and 2)" in text


def test_stages_of_different_lengths(said):
    text = said(score(1.0, 2.0), score(1.0))
    assert "A ends at iteration 1, B at iteration 0: the last figures of each." in text
    assert "Equal as far as both go: 1 figure, until iteration 0." in text


def test_one_that_failed_says_why(said, tmp_path):
    stage(tmp_path / "b" / "ppo", []).joinpath("stopped.json").write_text(json.dumps({"error": "no [room] left\nx"}))
    (tmp_path / "b" / "ppo" / "done.json").unlink()
    text = said(score(1.0, 2.0), score(1.0), done=(True, False))
    assert "B failed at iteration 0 (no [room] left). Figures are read where both have them last." in text


def test_one_that_has_not_begun(said):
    assert "ppo: PPO B has no figures of it yet." in said(score(1.0), [], done=(True, False))
    assert "ppo: PPO A and B have no figures of it yet." in said([], [], done=(False, False))


def test_nothing_at_a_common_place(said):
    text = said([{"step": 1, "loss": 1.0}], [{"step": 2, "loss": 1.0}], done=(True, False))
    assert "No figure was taken at a place that both have." in text
    assert "Taken at no place that both have: loss." in text


def test_many_figures_are_counted(said):
    names = [f"mine/{letter}" for letter in "abcdefgh"]
    rows = [{"step": 1, **dict.fromkeys(names, 1.0), "loss": loss} for loss in (1.0, 2.0)]
    text = said(rows[:1], rows[1:])
    assert "8 last figures are equal: mine/a, mine/b, mine/c, mine/d, mine/e, mine/f and 2 more." in text


def test_stages_matched_by_name_of_other_classes_or_of_one_run_alone(tmp_path):
    classes = {"a": {"policy": "rlhf.PPO", "old": "rlhf.SFT"}, "b": {"policy": "rlhf.GRPO"}}
    for name, stages in classes.items():
        config(tmp_path / name, {key: {"class_path": path, "init_args": {}} for key, path in stages.items()})
        stage(tmp_path / name / "policy", curve("loss", 1.0))
    text = printed(tmp_path / "a", tmp_path / "b")
    assert " stages.policy PPO GRPO " in text and "policy: PPO in A, GRPO in B " in text
    assert "Only A has the stage old (SFT); stages are matched by their names." in text


def test_copies_from_the_cache_say_whose_costs_they_have(tmp_path):
    for name in ("a", "b"):
        config(tmp_path / name, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
        folder = stage(tmp_path / name / "sft", curve("loss", float(name == "b")))
        (folder / "stage.json").write_text(json.dumps({"taken_from": "runs/.stages/x"} if name == "b" else {}))
    assert "B took sft from a run that had made the same before" in printed(tmp_path / "a", tmp_path / "b")


def test_texts_of_people_are_shown_as_they_are(tmp_path):
    for name, prompt in (("[bold]ä", "[red]Grüße[/red] 世界"), ("b", "[/]")):
        sft = {"class_path": "rlhf.SFT", "init_args": {"format": prompt}}
        config(tmp_path / name, {"sft": sft})
        evaluation(stage(tmp_path / name / "sft", curve("loss", 1.0)), 0, [("wer?", prompt, 0.0)])
    text = printed(tmp_path / "[bold]ä", tmp_path / "b")
    assert "/[bold]ä B: " in text and " stages.sft.format [red]Grüße[/red] 世界 [/] " in text
    assert "0 of 1 are the same, letter for letter." in text


def test_other_prompts_are_not_compared(tmp_path):
    for name in ("a", "b"):
        config(tmp_path / name, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
        evaluation(stage(tmp_path / name / "sft", curve("loss", float(name == "b"))), 0, [(name, "x", 0.0)])
    assert "the last evaluation of both: the prompts are others." in printed(tmp_path / "a", tmp_path / "b")


def test_no_line_is_wider_than_the_terminal(tmp_path):
    folders = [simple(tmp_path / name, lr=lr) for name, lr in (("a", 1e-3), ("b", 2e-3))]
    for folder, length in zip(folders, (1, 200), strict=True):
        path = folder / "config.yaml"
        path.write_text(path.read_text() + f"a_setting_of_a_very_long_name_indeed_{'x' * 50}: {'word' * length}\n")
    file = io.StringIO()
    print_comparison(read_both(*folders), Console(file=file, width=60))
    assert max(len(line.rstrip()) for line in file.getvalue().splitlines()) <= 60
