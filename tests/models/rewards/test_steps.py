"""Steps in text and in tokens."""

import pytest
from hypothesis import given, settings, strategies as st

from rlhf.models.rewards.steps import split_steps, step_ends
from rlhf.models.tokenizer import train_bpe

TOKENIZER = train_bpe(["a line\nand\n\nanother café\n", "x\n\ny\n"] * 4, 290)
END = TOKENIZER.eos_token_id


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=False)


def steps(ids: list[int], text: str, separator: str = "\n") -> list[tuple[str, int]]:
    return [tuple(step) for step in split_steps(ids, text, separator, decode)]


def spelled(tokens: list[str]) -> list[int]:
    """Ids of pieces of text, each of which is one token (or the bytes of one character)."""
    return [id for token in tokens for id in TOKENIZER.encode(token)]


@pytest.mark.parametrize(("text", "separator", "ends"), [
    ("a\nb", "\n", [2, 3]), ("a\nb\n", "\n", [4 - 2, 4]), ("a\n\n\nb", "\n", [4, 5]), ("\na", "\n", [2]),
    ("a\n  \nb", "\n", [2, 6]), ("a\n \n", "\n", [4]), ("", "\n", [0]), ("\n", "\n", [1]), (" ", "\n", [1]),
    ("a. b. c", ". ", [3, 6, 7]), ("a.b", ".", [2, 3]), ("a\nb", "\n\n", [3]),
])  # fmt: skip
def test_where_steps_end(text, separator, ends):
    assert step_ends(text, separator) == ends


def test_a_step_ends_with_the_token_that_completes_its_separator():
    ids = [*TOKENIZER.encode("x"), *TOKENIZER.encode("\n"), *TOKENIZER.encode("y"), END]
    assert len(ids) == 4
    assert steps(ids, "x\ny") == [("x", 1), ("y", 3)]  # the last has the end token
    assert steps(ids[:3], "x\ny") == [("x", 1), ("y", 2)]  # a response that was cut
    assert steps([END], "") == [("", 0)]
    assert steps([*ids[:2], END], "x\n") == [("x", 2)]  # nothing comes after the separator: the step ends with the end


def test_a_token_that_ends_two_steps_makes_them_one():
    whole, single = [10, 11, 12], {10: "a\nb\nc", 11: "d\n\n", 12: "e"}

    def decode(ids):
        return "".join(single[id] for id in ids)

    found = split_steps(whole, "a\nb\ncd\n\ne", "\n", decode)
    assert [tuple(step) for step in found] == [("a\nb", 0), ("cd", 1), ("e", 2)]


def test_pieces_of_a_character_wait_for_the_rest():
    ids = spelled(["é", "\n", "é"])
    pieces = len(spelled(["é"]))
    euro = spelled(["€"])
    assert len(euro) == 3  # one token a byte
    assert steps(ids, "é\né") == [("é", pieces), ("é", 2 * pieces)]
    # the separator is a character of three tokens: the step ends with its last byte
    assert steps([*spelled(["x"]), *euro, *spelled(["y"])], "x€y", "€") == [("x", 3), ("y", 4)]
    cut = [*spelled(["x", "\n"]), *euro[:2]]  # the response was cut within a character
    assert steps(cut, decode(cut)) == [("x", 1), ("�", 3)]


def test_tokenizers_that_join_pieces_otherwise_within_a_text():
    def decode(ids):  # as SentencePiece does: no space before the first
        return " ".join("ab|"[id] for id in ids)

    assert [tuple(step) for step in split_steps([0, 2, 1], "a | b", "|", decode)] == [("a ", 1), (" b", 2)]


def test_text_of_other_tokens_is_refused():
    with pytest.raises(ValueError, match="the response 'xz' is not what its tokens decode to"):
        steps(spelled(["x", "y"]), "xz")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, len(TOKENIZER) - 1), min_size=1, max_size=30), st.sampled_from(["\n", "a", "\n\n", "é"]))
def test_prefixes_hold_their_steps_whatever_is_sampled(ids, separator):
    """Every step stands in the text of the tokens up to its end, and not in one token less."""
    text = decode(ids)
    found = split_steps([*ids, END], text, separator, decode)
    ends = [step.end for step in found]
    assert ends == sorted(set(ends)) and ends[-1] == len(ids)
    boundaries = step_ends(text, separator)
    for position in boundaries[:-1]:
        first = next(n for n in range(1, len(ids) + 1) if text[:position] == decode(ids[:n])[:position])
        assert first - 1 in ends
    assert len(found) <= len(boundaries)
