import pytest

from rlhf.data.examples import Examples, TextExample


def test_examples_by_source_name_or_number() -> None:
    a, b, c = (TextExample(ids=[i, i]) for i in range(3))
    examples = Examples({"x": [a], "y": [b, c]})
    assert examples.sizes == {"x": 1, "y": 2} and len(examples) == 3
    assert examples["y", 1] is c and examples[1, 0] is b and examples[0, 0] is a
    assert list(examples) == [a, b, c]
    with pytest.raises(IndexError):
        examples[0, 1]


def test_the_longest_of_all_sources() -> None:
    from rlhf.data.examples import Examples, TextExample

    rows = {"a": [TextExample(ids=[1, 2])], "b": [TextExample(ids=[1, 2, 3]), TextExample(ids=[1, 2])], "c": []}
    assert Examples(rows).longest == 3 and Examples({"a": []}).longest == Examples({}).longest == 0
