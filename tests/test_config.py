"""From YAML and overrides to objects and back: what is accepted, and what every mistake is told."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

import pytest

from rlhf.algorithms.advantages import GAE, GroupNorm
from rlhf.algorithms.kl import KL, Adaptive, Fixed
from rlhf.algorithms.objectives import Entropy
from rlhf.config import dump, load, split_overrides
from rlhf.errors import ConfigError
from rlhf.experiment import Experiment
from rlhf.interfaces import AdvantageEstimator, Algorithm, MetricSink, Source
from rlhf.schema import typed
from rlhf.yaml_files import parse, write


@dataclass(frozen=True, kw_only=True)
class ToySource(Source):
    """Rows of a toy.

    Args:
        path: A file.
        limit: Rows.
    """

    path: str
    limit: int | None = None

    def load(self):
        raise AssertionError("a config loads no data")


@dataclass(frozen=True, kw_only=True)
class ToyData:
    """A group of settings.

    Args:
        sources: By name.
        weights: By name.
        max_tokens: Length.
    """

    sources: dict[str, Source]
    weights: dict[str, float] = field(default_factory=dict)
    max_tokens: int = 64


@dataclass(frozen=True, kw_only=True)
class ToyAlgorithm(Algorithm):
    """Every kind of setting."""

    data: ToyData | None = None
    advantage: AdvantageEstimator = GAE(lam=0.5)
    kl: KL | None = KL(estimator="k3", where="loss", controller=Fixed(coef=0.04))
    entropy: Entropy | None = None
    clip: float = 0.2
    steps: int = 10
    flag: bool = True
    label: str = "x"
    note: str | None = None
    mode: Literal["token", "sequence"] = "token"
    betas: tuple[float, float] = (0.9, 0.95)
    penalty: float | dict[str, float] = 0.5
    batch_size: int = 8

    def check(self) -> list[str]:
        return [f"batch_size: {self.batch_size} % 3 ≠ 0; take 9"] if self.batch_size == 16 else []


@dataclass(frozen=True, kw_only=True)
class ToyVariant(ToyAlgorithm):
    """Another default for one setting, another setting."""

    clip: float = 0.7
    extra: int = 1


@dataclass(frozen=True, kw_only=True)
class ToySink(MetricSink):
    """A sink."""

    color: str = "red"

    def open(self, directory):
        raise AssertionError("a config opens no sink")


class ToyPlain(AdvantageEstimator):
    """A component that is no dataclass."""

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def __call__(self, scored):
        raise AssertionError("a config computes nothing")


class ToyBare(AdvantageEstimator):
    """A component without settings."""

    def __call__(self, scored):
        raise AssertionError("a config computes nothing")


BASE = """
name: toy
stages:
  one:
    class_path: ToyAlgorithm
    init_args:
      clip: 1e-1
      advantage: {class_path: GAE, init_args: {gamma: 0.9}}
      data: {sources: {reviews: {class_path: ToySource, init_args: {path: a.jsonl}}}}
"""


REVIEWS = {"reviews": ToySource(path="a.jsonl")}


@pytest.fixture
def make(tmp_path):
    """An experiment of YAML texts and command-line words."""

    def make(*texts: str, argv: str | list[str] = "") -> Experiment:
        files = []
        for index, text in enumerate(texts or [BASE]):
            files.append(tmp_path / f"{index}.yaml")
            files[-1].write_text(text)
        return load(files, split_overrides(argv.split() if isinstance(argv, str) else argv))

    return make


@pytest.fixture
def one(make):
    """The only stage of such an experiment."""
    return lambda *texts, argv="": make(*texts, argv=argv).stages["one"]


@pytest.fixture
def problems(make, tmp_path):
    """What is said of a wrong experiment, without the folder's name."""

    def problems(*texts: str, argv: str | list[str] = "") -> list[str]:
        with pytest.raises(ConfigError) as error:
            make(*texts, argv=argv)
        return [problem.replace(f"{tmp_path}/", "") for problem in error.value.problems]

    return problems


def stage(settings: str) -> str:
    return f"stages: {{one: {{init_args: {{{settings}}}}}}}"


# ------------------------------------------------------------------------------------------------------ what is made


def test_a_file_makes_frozen_settings(make):
    experiment = make()
    assert (experiment.name, experiment.seed) == ("toy", 1)
    data = ToyData(sources={"reviews": ToySource(path="a.jsonl")})
    assert experiment.stages == {"one": ToyAlgorithm(clip=0.1, advantage=GAE(gamma=0.9), data=data)}


def test_a_class_that_is_named_has_its_own_defaults_and_one_that_is_not_keeps_the_settings_default(one):
    assert one().advantage == GAE(gamma=0.9, lam=0.95)
    left = "name: n\nstages: {one: {class_path: ToyAlgorithm, init_args: {kl: {controller: {init_args: {coef: 3}}}}}}"
    assert one(left).advantage == GAE(lam=0.5)
    assert one(left).kl == KL(estimator="k3", where="loss", controller=Fixed(coef=3.0))


def test_bare_names(one):
    assert one(BASE, stage("advantage: GroupNorm")).advantage == GroupNorm()
    assert one("name: n\nstages: {one: ToyAlgorithm}") == ToyAlgorithm()


def test_later_files_change_only_what_they_name(make):
    experiment = make(BASE, "stages: {two: ToyAlgorithm}\nseed: 7", stage("advantage: {init_args: {lam: 0.3}}"))
    assert list(experiment.stages) == ["one", "two"] and experiment.seed == 7
    assert experiment.stages["one"].advantage == GAE(gamma=0.9, lam=0.3)
    assert experiment.stages["one"].clip == 0.1


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--stages.one.clip 0.3", "clip", 0.3),
        ("--stages.one.clip=1", "clip", 1.0),
        ("--stages.one.clip -3e-1", "clip", -0.3),
        ("--stages.one.init_args.clip 0.3", "clip", 0.3),
        ("--stages.one.advantage.lam 0.9", "advantage", GAE(gamma=0.9, lam=0.9)),
        ("--stages.one.advantage GroupNorm", "advantage", GroupNorm()),
        ("--stages.one.advantage GroupNorm --stages.one.advantage.scale batch", "advantage", GroupNorm(scale="batch")),
        ("--stages.one.kl null", "kl", None),
        ("--stages.one.kl.controller Adaptive", "kl", KL(estimator="k3", where="loss", controller=Adaptive())),
        ("--stages.one.entropy.coef 0.2", "entropy", Entropy(coef=0.2)),
        ("--stages.one.label 1e-3", "label", "1e-3"),
        ("--stages.one.label off", "label", "off"),
        ("--stages.one.note null", "note", None),
        ("--stages.one.note text", "note", "text"),
        ("--stages.one.betas [0.5,0.6]", "betas", (0.5, 0.6)),
        ("--stages.one.penalty 2", "penalty", 2.0),
        ("--stages.one.penalty.a 2", "penalty", {"a": 2.0}),
        ("--stages.one.data.max_tokens 9", "data", ToyData(sources=REVIEWS, max_tokens=9)),
        ("--stages.one.data.weights.reviews 2", "data", ToyData(sources=REVIEWS, weights={"reviews": 2.0})),
    ],
)
def test_overrides(one, words, name, value):
    assert getattr(one(argv=words), name) == value


def test_yaml_on_the_command_line(one):
    text = "{class_path: Adaptive, init_args: {target: 3}}"
    assert one(argv=["--stages.one.kl.controller", text]).kl.controller == Adaptive(target=3.0)


def test_overrides_inside_a_dict_inside_a_group(one):
    words = "--stages.one.data.sources.reviews.path x.jsonl --stages.one.data.sources.more ToySource"
    sources = one(argv=f"{words} --stages.one.data.sources.more.path y").data.sources
    assert sources == {"reviews": ToySource(path="x.jsonl"), "more": ToySource(path="y")}


def test_another_class_drops_the_former_ones_settings_and_the_same_class_keeps_them(one):
    text = BASE.replace("{gamma: 0.9}", "{gamma: 0.9, lam: 0.2}")
    assert one(text, argv="--stages.one.advantage Returns").advantage.gamma == 1.0
    assert one(text, argv="--stages.one.advantage GAE").advantage == GAE(gamma=0.9, lam=0.2)


def test_a_variant_keeps_what_means_the_same_in_it(one):
    words = "--stages.one.steps 3 --stages.one.class_path ToyVariant"
    made = one(argv=words)  # clip is given as 0.1 in the file, and redefined by the variant
    assert made == ToyVariant(advantage=GAE(gamma=0.9), data=ToyData(sources=REVIEWS), steps=3, clip=0.7)
    back = one(argv=f"{words} --stages.one.extra 5 --stages.one.class_path ToyAlgorithm")
    assert back == ToyAlgorithm(advantage=GAE(gamma=0.9), data=ToyData(sources=REVIEWS), steps=3)


def test_lists_of_components(make):
    assert make(BASE + "sinks: [ToySink, {class_path: ToySink, init_args: {color: blue}}]").sinks == [
        ToySink(),
        ToySink(color="blue"),
    ]
    assert make(argv="--sinks [ToySink]").sinks == [ToySink()]


# case H2
@pytest.mark.parametrize("word", ["false", "False", "0", "no"])
def test_words_for_false(one, word):
    assert one(argv=f"--stages.one.flag {word}").flag is False
    assert one(argv=f"--stages.one.flag={word}").flag is False


# case H2
def test_false_in_yaml_quoted_or_not_and_kept_in_the_dump(make, one):
    assert one(BASE, stage("flag: false")).flag is False
    assert one(BASE, stage('flag: "false"')).flag is False
    assert "flag: false" in dump(make(argv="--stages.one.flag false"))
    assert one(argv="--stages.one.flag true").flag is True


# case H2
def test_maybe_is_no_bool_and_off_is_no_text(problems):
    assert problems(argv="--stages.one.flag maybe") == [
        "command line: stages.one.flag: 'maybe' is not of type bool. Give true or false."
    ]
    assert problems(BASE, stage("label: off")) == ["1.yaml: stages.one.label: False is not of type str. Give a text."]


def test_nan_is_no_setting(problems):
    with pytest.raises(ValueError, match="nan is not a number that a setting can have"):
        typed(float, float("nan"), written=True)
    with pytest.raises(ValueError, match=r"'nan' is not (a number|of type float)"):
        typed(float | None, "nan", written=False)
    assert typed(float, float("inf"), written=True) == float("inf")


def test_what_a_list_looks_like_is_told():
    with pytest.raises(ValueError, match=r"Give a list of texts, as \[one, two\], .* in quotes or null"):
        typed(list[str] | None, "[null]", written=False)
    with pytest.raises(ValueError, match=r"'1' is not of type list\[int\]. Give a list of whole numbers, as \[1, 2\]"):
        typed(list[int], "1", written=False)


# ---------------------------------------------------------------------------------------------------------- mistakes


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


def test_override_pairs():
    assert split_overrides(["--a.b", "-1", "--c=x=y", "--d="]) == [("a.b", "-1"), ("c", "x=y"), ("d", "")]


# ----------------------------------------------------------------------------------------------------------- and back


def test_a_dump_loads_again_to_an_equal_experiment(make, tmp_path):
    experiment = make(
        BASE + "sinks: [ToySink]",
        argv="--stages.one.label 1e-3 --stages.one.note 007 --stages.one.penalty.a 2 --stages.one.data.max_tokens 9",
    )
    (tmp_path / "dumped.yaml").write_text(dump(experiment))
    assert load([tmp_path / "dumped.yaml"]) == experiment
    assert dump(load([tmp_path / "dumped.yaml"])) == dump(experiment)


def test_a_dump_spells_everything_out_under_short_names(make):
    plain = parse(dump(make()))
    assert list(plain) == [
        "name", "stages", "deployment", "seed", "output_dir", "sinks", "threads", "cache_dir", "stage_cache",
        "keep_checkpoints", "save_in_background",
    ]  # fmt: skip
    settings = plain["stages"]["one"]["init_args"]
    lams = {"lam": 0.95, "critic_lam": None, "length_alpha": None}
    assert settings["advantage"] == {"class_path": "rlhf.GAE", "init_args": {"gamma": 0.9, **lams, "whiten": True}}
    assert settings["kl"]["controller"] == {"class_path": "rlhf.Fixed", "init_args": {"coef": 0.04}}
    assert settings["flag"] is True and settings["entropy"] is None


def test_components_that_are_no_dataclasses(one, make):
    made = one(argv="--stages.one.advantage ToyPlain --stages.one.advantage.scale 2").advantage
    assert isinstance(made, ToyPlain) and made.scale == 2.0
    assert "init_args:\n          scale: 1.0" in dump(make(argv="--stages.one.advantage ToyPlain"))


def test_components_without_a_constructor(one):
    assert type(one(argv="--stages.one.advantage ToyBare").advantage) is ToyBare


def test_a_class_of_the_users_own_file_by_its_path(one, problems, tmp_path, monkeypatch):
    (tmp_path / "own_ideas.py").write_text(
        "from dataclasses import dataclass\nfrom rlhf.interfaces import AdvantageEstimator\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Clipped(AdvantageEstimator):\n    limit: float = 3.0\n"
        "    def __call__(self, scored): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        made = one(BASE, stage("advantage: {class_path: own_ideas.Clipped, init_args: {limit: 2}}")).advantage
        assert (type(made).__module__, made.limit) == ("own_ideas", 2.0)
        told = problems(BASE, stage("advantage: own_idea.Clipped"))
        assert told[0].startswith("1.yaml: stages.one.advantage: 'own_idea.Clipped': there is no module 'own_idea'")
    finally:
        sys.modules.pop("own_ideas", None)


def test_other_roots_than_an_experiment(tmp_path):
    (tmp_path / "kl.yaml").write_text("estimator: k2")
    assert load([tmp_path / "kl.yaml"], [("where", "loss")], root=KL) == KL(estimator="k2", where="loss")


@pytest.mark.parametrize("value", ["1e-3", "off", "null", "1", "2020-01-01", "@sft", "a: b", ".5", "5.", "1_000.0", ""])
def test_text_stays_text(value):
    assert parse(write({"a": value})) == {"a": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2E5", -200000.0),
        (".inf", float("inf")),
        ("3", 3),
    ],
)
def test_numbers_are_numbers(text, value):
    read = parse(text)
    assert read == value and type(read) is type(value)
    assert parse(write({"a": value})) == {"a": value}


def test_merge_keys_of_yaml_are_no_duplicates():
    assert parse("a: &a {x: 1}\nb: {<<: *a, y: 2}")["b"] == {"x": 1, "y": 2}


def test_null_takes_an_entry_out(make):
    more = "stages: {two: {class_path: ToyAlgorithm, init_args: {}}}"
    assert list(make(BASE, more).stages) == ["one", "two"]
    assert list(make(BASE, more, argv="--stages.one null").stages) == ["two"]
    assert make(BASE, more, "stages: {two: null}") == make(BASE)
