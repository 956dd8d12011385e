"""From YAML and overrides to objects: which class, which settings, which defaults."""

import sys

import pytest
from toys import BASE, REVIEWS, ToyAlgorithm, ToyBare, ToyData, ToyPlain, ToySink, ToySource, ToyVariant, stage

from rlhf.algorithms.advantages import GAE, GroupNorm
from rlhf.algorithms.kl import KL, Adaptive, Fixed
from rlhf.algorithms.objectives import Entropy
from rlhf.config import dump, load


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


def test_null_takes_an_entry_out(make):
    more = "stages: {two: {class_path: ToyAlgorithm, init_args: {}}}"
    assert list(make(BASE, more).stages) == ["one", "two"]
    assert list(make(BASE, more, argv="--stages.one null").stages) == ["two"]
    assert make(BASE, more, "stages: {two: null}") == make(BASE)
