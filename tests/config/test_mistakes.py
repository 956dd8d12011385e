"""What every mistake in a config is told: its place, what is wrong, and the remedy."""

import pytest
from toys import BASE, stage

from rlhf.config import load, split_overrides
from rlhf.errors import ConfigError


# case H1
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("clipp: 1", "stages.one.clipp: ToyAlgorithm has no setting 'clipp'. Did you mean clip?"),
        ("kl: {estimatr: k1}", "stages.one.kl.estimatr: KL has no setting 'estimatr'. Did you mean estimator?"),
        ("lam: 1", "stages.one.lam: ToyAlgorithm has no setting 'lam'. It is a setting of stages.one.advantage."),
        ("seed: 1", "stages.one.seed: ToyAlgorithm has no setting 'seed'. It is a setting of the experiment itself."),
        (
            "kl: {zzz: 1}",
            "stages.one.kl.zzz: KL has no setting 'zzz'. It has: estimator, where, controller.",
        ),
        (
            "advantage: gae",
            "stages.one.advantage: No AdvantageEstimator is called 'gae'. Did you mean GAE?",
        ),
        (
            "advantage: {lam: 1}",
            "stages.one.advantage.lam: the settings of a class belong under init_args; "
            "write {class_path: GAE, init_args: {lam: …}}",
        ),
        (
            "advantage: {class_path: Returns, init_args: {lam: 1}}",
            "stages.one.advantage.lam: Returns has no setting 'lam'. GAE has it: name that class first.",
        ),
        ("advantage: [GAE]", "stages.one.advantage: expected AdvantageEstimator"),
        ("advantage: {init_args: 3}", "stages.one.advantage.init_args: expected the settings of the class, not 3"),
        ("clip: null", "stages.one.clip: null is not allowed; give float"),
        ("clip:", "stages.one.clip: null is not allowed; give float"),
        ("advantage: null", "stages.one.advantage: null is not allowed; give AdvantageEstimator"),
        ("clip: abc", "stages.one.clip: 'abc' is not of type float."),
        ("clip: true", "stages.one.clip: True is not of type float."),
        ("steps: 1.5", "stages.one.steps: 1.5 is not of type int."),
        ("mode: tokn", "stages.one.mode: 'tokn' is not one of 'token' | 'sequence'. Did you mean token?"),
        ("kl: 3", "stages.one.kl: expected the settings of KL, not 3"),
        ("data: {sources: [ToySource]}", "stages.one.data.sources: expected named entries (name: Source)"),
        ("data: {sources: {a: {init_args: {}}}}", "stages.one.data.sources.a: there is no 'a' here. Known: reviews."),
    ],
)
def test_mistakes_in_a_file_are_told_with_place_and_remedy(problems, settings, message):
    told = problems(BASE, stage(settings))
    assert len(told) == 1
    assert told[0].startswith(f"1.yaml: {message}")


def test_a_component_without_a_default_must_be_named(problems):
    told = problems(BASE + "sinks: [{init_args: {color: red}}]")
    assert len(told) == 1
    assert told[0].startswith("0.yaml: sinks.0: names no MetricSink; give class_path. Known: ")


def test_settings_that_must_be_given(problems):
    assert problems("stages: {one: ToyAlgorithm}") == ["name: Experiment needs this setting, of type str"]
    told = problems(BASE, stage("data: {sources: {more: ToySource}}"))
    assert told == ["stages.one.data.sources.more.path: ToySource needs this setting, of type str"]


def test_an_entry_that_is_not_there_cannot_be_changed(problems):
    assert problems(argv="--stages.on.clip 1") == [
        "command line: stages.on: there is no 'on' here. Did you mean one? Known: one. "
        "To add one, name its class with class_path."
    ]
    told = problems("name: n\nstages: {one: {init_args: {clip: 1}}}")
    assert told[0].startswith(
        "0.yaml: stages.one: there is no 'one' here. It has no entries yet. To add one, name its class"
    )


def test_what_a_component_refuses_is_told_with_its_place(problems):
    told = problems(argv="--stages.one.kl.estimator k1")
    assert len(told) == 1
    assert told[0].startswith("stages.one.kl (KL): estimator is k1 and where is loss")


def test_all_problems_are_told_at_once(problems):
    assert len(problems(BASE, stage("clipp: 1, advantage: gae, steps: null"), argv="--sed 3")) == 4
    assert len(problems(BASE, stage("clip: a, steps: b"), argv="--stages.one.flag maybe")) == 3


# case H4
def test_impossible_batches_are_refused_before_anything_runs(problems):
    assert problems(argv="--stages.one.batch_size 16") == ["stages.one.batch_size: 16 % 3 ≠ 0; take 9"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0.yaml: is empty"),
        ("- a\n- b", "0.yaml: holds a list; its top level must be keys"),
        ("just words", "0.yaml: holds a str; its top level must be keys"),
        ("name: [", "0.yaml: is not YAML: "),
        ("name: a\nname: b", "0.yaml: is not YAML: 'name' is given twice"),
    ],
)
def test_files_that_hold_no_settings(problems, text, message):
    told = problems(text)
    assert len(told) == 1
    assert told[0].startswith(message)


def test_a_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "quickstart.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=r"quikstart\.yaml: no such file; .* has quickstart\.yaml"):
        load([tmp_path / "quikstart.yaml"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed", "3"], "'seed' is no setting"),
        (["--seed"], "--seed has no value"),
        (["--seed", "--name", "x"], "--seed has no value"),
    ],
)
def test_words_that_are_no_override(words, message):
    with pytest.raises(ConfigError, match=message):
        split_overrides(words)


def test_an_option_of_the_command_may_be_meant():
    with pytest.raises(ConfigError, match=r"write --dry-run value. Did you mean --dry_run\?$"):
        split_overrides(["--dry-run"], ["config", "dry_run"])


def test_override_pairs():
    assert split_overrides(["--a.b", "-1", "--c=x=y", "--d="]) == [("a.b", "-1"), ("c", "x=y"), ("d", "")]
