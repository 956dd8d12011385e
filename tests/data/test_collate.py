import pytest
import torch

from rlhf.data.collate import (
    collate_comparisons,
    collate_labelled,
    collate_packed,
    collate_prompts,
    collate_unpaired,
    pack,
)
from rlhf.data.examples import ComparisonExample, DemonstrationExample, PromptExample, TextExample, UnpairedExample


def demo(prompt: list[int], response: list[int]) -> DemonstrationExample:
    return DemonstrationExample(prompt_ids=prompt, response_ids=response)


A = demo([7, 0, 8], [5, 6, 0])  # 0 is pad and end, and the prompt holds it too
LONG = demo([9] * 4, [4] * 5)


def test_end_is_learned_though_it_is_the_pad() -> None:  # case A3
    batch = collate_labelled([A, LONG], pad_id=0)
    sequences = batch.sequences
    assert sequences.ids[0].tolist() == [7, 0, 8, 5, 6, 0, 0, 0, 0]
    assert sequences.attention_mask[0].tolist() == [True] * 6 + [False] * 3
    assert batch.mask[0].tolist() == [False, False, True, True, True, False, False, False]
    assert batch.mask.shape == (2, 8) and batch.mask.dtype == torch.bool
    assert sequences.response_ids[0][batch.mask[0]].tolist() == [5, 6, 0]
    assert batch.mask.sum(1).tolist() == [3, 5]


def test_pairs_are_interleaved_and_masks_cover_the_responses() -> None:  # case A3
    pair = ComparisonExample(prompt_ids=[7, 0, 8], chosen_ids=[5, 6, 0], rejected_ids=[5, 0], margin=2.0, weight=0.5)
    other = ComparisonExample(prompt_ids=[7], chosen_ids=[0], rejected_ids=[3, 0])
    batch = collate_comparisons([pair, other], pad_id=0)
    assert batch.sequences.ids.tolist() == [
        [7, 0, 8, 5, 6, 0],
        [7, 0, 8, 5, 0, 0],
        [7, 0, 0, 0, 0, 0],
        [7, 3, 0, 0, 0, 0],
    ]
    assert batch.sequences.attention_mask.sum(1).tolist() == [6, 5, 2, 3]
    assert batch.sequences.last_index().tolist() == [5, 4, 1, 2]
    assert batch.mask.int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert batch.margin.tolist() == [2, 2, 0, 0] and batch.weight.tolist() == [0.5, 0.5, 1, 1]
    cut = batch.select(torch.tensor([2, 3]))
    assert cut.sequences.ids.tolist() == [[7, 0, 0], [7, 3, 0]] and cut.mask.int().tolist() == [[1, 0], [1, 1]]


def test_the_first_token_is_never_a_target() -> None:
    assert collate_labelled([A], pad_id=0, train_on_prompt=True).mask.tolist() == [[True] * 5]
    assert collate_labelled([TextExample(ids=[1, 2, 3])], pad_id=0).mask.tolist() == [[True, True]]
    batch = collate_labelled([TextExample(ids=[1, 2, 3])], pad_id=0, pad_left=2)
    assert batch.mask.int().tolist() == [[0, 0, 1, 1]]


def test_pads_on_the_left_shift_everything_and_change_nothing() -> None:
    plain, shifted = collate_labelled([A, LONG], pad_id=0), collate_labelled([A, LONG], pad_id=0, pad_left=3)
    assert shifted.sequences.ids[:, 3:].equal(plain.sequences.ids)
    assert shifted.mask[:, 3:].equal(plain.mask) and not shifted.mask[:, :3].any()
    assert shifted.sequences.position_ids[:, 3:].equal(plain.sequences.position_ids)


def test_a_prompt_width_that_would_hide_targets_is_refused() -> None:
    assert collate_labelled([A, LONG], pad_id=0, prompt_width=3).mask.sum(1).tolist() == [3, 5]
    with pytest.raises(ValueError, match="prompt_width: 4"):
        collate_labelled([A], pad_id=0, prompt_width=4)
    with pytest.raises(ValueError, match="prompt_width: 0"):
        collate_labelled([A], pad_id=0, prompt_width=0)


def test_packing_is_first_fit() -> None:
    sizes = [4, 3, 2, 3, 1]
    examples = [TextExample(ids=[0] * size) for size in sizes]
    assert [[len(e.ids) for e in group] for group in pack(examples, 6)] == [[4, 2], [3, 3], [1]]
    with pytest.raises(ValueError, match="7 tokens in rows of 6"):
        pack([TextExample(ids=[0] * 7)], 6)


def test_packed_rows_keep_examples_apart() -> None:
    batch = collate_packed([[A, demo([3], [4, 0])], [TextExample(ids=[1, 2])]], pad_id=0)
    sequences = batch.sequences
    assert sequences.ids.tolist() == [[7, 0, 8, 5, 6, 0, 3, 4, 0], [1, 2, 0, 0, 0, 0, 0, 0, 0]]
    assert sequences.segments is not None
    assert sequences.segments.tolist() == [[1] * 6 + [2] * 3, [1, 1] + [0] * 7]
    assert sequences.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2], [0, 1] + [0] * 7]
    assert batch.mask.int().tolist() == [[0, 0, 1, 1, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0]]
    on_prompt = collate_packed([[A, demo([3], [4, 0])]], pad_id=0, train_on_prompt=True)
    assert on_prompt.mask.int().tolist() == [[1, 1, 1, 1, 1, 0, 1, 1]]  # never the first token of the second


def test_packed_and_padded_train_on_the_same_tokens() -> None:
    examples = [A, LONG, demo([3], [4, 0])]
    padded = collate_labelled(examples, pad_id=0)
    packed = collate_packed(pack(examples, 12), pad_id=0)
    learned = [sorted(b.sequences.response_ids[b.mask].tolist()) for b in (padded, packed)]
    assert learned[0] == learned[1] == sorted([5, 6, 0] + [4] * 5 + [4, 0])


def test_prompts_with_columns_of_some_sources_only() -> None:
    prompts = collate_prompts(
        [
            PromptExample(prompt_ids=[1, 2], prompt="a", source="x", columns={"rating": 5}),
            PromptExample(prompt_ids=[3], prompt="b", source="y", columns={"answer": "z"}),
        ]
    )
    assert prompts.ids == [[1, 2], [3]] and prompts.text == ["a", "b"] and prompts.source == ["x", "y"]
    assert prompts.columns == {"rating": [5, None], "answer": [None, "z"]}


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        collate_labelled([], pad_id=0)


TALK = DemonstrationExample(
    prompt_ids=[7, 8], response_ids=[5, 0, 9, 6, 0], targets=[True, True, False, True, True], source="talks"
)


def test_of_a_conversation_only_what_the_assistant_says_is_learned() -> None:
    batch = collate_labelled([TALK, A], pad_id=0)
    assert batch.mask.int().tolist() == [[0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 0]]
    assert collate_labelled([TALK], pad_id=0, train_on_prompt=True).mask.tolist() == [[True] * 6]
    beginning = DemonstrationExample(prompt_ids=[], response_ids=[5, 0, 9], targets=[True, True, False])
    assert collate_labelled([beginning], pad_id=0).mask.int().tolist() == [[1, 0]]  # nothing stands before the first


def test_sources_of_rows_and_of_packed_tokens() -> None:
    text = TextExample(ids=[1, 2], source="texts")
    batch = collate_labelled([text, TALK, text], pad_id=0)
    assert batch.source_names == ("texts", "talks") and batch.sources is not None
    assert batch.sources[batch.mask].tolist() == [0] + [1] * 4 + [0]
    packed = collate_packed([[TALK, text]], pad_id=0)
    assert packed.source_names == ("talks", "texts") and packed.sources is not None
    assert packed.sources[packed.mask].tolist() == [0] * 4 + [1]
    pairs = [
        ComparisonExample(prompt_ids=[1], chosen_ids=[2], rejected_ids=[3], source=name) for name in ("a", "b", "a")
    ]
    comparisons = collate_comparisons(pairs, pad_id=0)
    assert comparisons.source_names == ("a", "b") and comparisons.sources is not None
    assert comparisons.sources.tolist() == [0, 0, 1, 1, 0, 0]
    cut = comparisons.select(torch.tensor([2, 3]))
    assert cut.source_names == ("a", "b") and cut.sources is not None and cut.sources.tolist() == [1, 1]


def test_judged_responses() -> None:
    good = UnpairedExample(prompt_ids=[7, 0], response_ids=[5, 6, 0], label=True, source="a")
    bad = UnpairedExample(prompt_ids=[7], response_ids=[0], label=False, source="b")
    batch = collate_unpaired([good, bad], pad_id=0)
    assert batch.sequences.ids.tolist() == [[7, 0, 5, 6, 0], [7, 0, 0, 0, 0]]
    assert batch.sequences.attention_mask.sum(1).tolist() == [5, 2]
    assert batch.mask.int().tolist() == [[0, 1, 1, 1], [1, 0, 0, 0]]
    assert batch.label.tolist() == [True, False] and batch.label.dtype == torch.bool
    assert batch.source_names == ("a", "b") and batch.sources is not None and batch.sources.tolist() == [0, 1]
    cut = batch.select(torch.tensor([1]))
    assert cut.label.tolist() == [False] and cut.mask.tolist() == [[True]]
