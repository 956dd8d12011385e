"""Experiments of YAML texts and command-line words, and what is said of wrong ones."""

import pytest
from toys import BASE

from rlhf.config import load, split_overrides
from rlhf.errors import ConfigError
from rlhf.experiment import Experiment


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
