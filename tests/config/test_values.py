"""Plain values and the way back: what a text becomes in YAML and on the command line, and what a dump writes."""

import pytest
from toys import BASE, stage

from rlhf.config import dump, load
from rlhf.schema import typed
from rlhf.yaml_files import parse, write


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
        "name", "stages", "deployment", "seed", "stage_seeds", "output_dir", "sinks", "threads", "cache_dir",
        "stage_cache", "keep_checkpoints", "save_in_background",
    ]  # fmt: skip
    settings = plain["stages"]["one"]["init_args"]
    lams = {"lam": 0.95, "critic_lam": None, "length_alpha": None}
    assert settings["advantage"] == {"class_path": "rlhf.GAE", "init_args": {"gamma": 0.9, **lams, "whiten": True}}
    assert settings["kl"]["controller"] == {"class_path": "rlhf.Fixed", "init_args": {"coef": 0.04}}
    assert settings["flag"] is True and settings["entropy"] is None


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
    assert parse("a: &a {on: 1}\nb: {<<: *a, off: 2}")["b"] == {"on": 1, "off": 2}


def test_words_for_truth_values_are_names_as_keys():
    """Choices of a grid are often called ``on`` and ``off``."""
    assert parse("{on: off, No: 1, y: 2, true: 3, 4: 5}") == {"on": False, "No": 1, "y": 2, True: 3, 4: 5}
    with pytest.raises(Exception, match="'on' is given twice"):
        parse("{on: 1, on: 2}")


@pytest.mark.parametrize(("first", "second"), [("1", "1.0"), ("1", "true"), ("a", '"a"'), ("0x10", "16")])
def test_keys_that_are_equal_are_given_twice_however_they_are_written(first, second):
    with pytest.raises(Exception, match="is given twice"):
        parse(f"{{{first}: 1, {second}: 2}}")
