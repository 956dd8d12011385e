"""What --show_batch prints is the batch that is learned from."""

import dataclasses
import io
from typing import ClassVar

import pytest
import tiny_runs
from rich.console import Console

from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.sft import SFT
from rlhf.data.collate import collate_unpaired
from rlhf.data.dataset import Data
from rlhf.data.templates import Chat, Plain
from rlhf.interfaces import Algorithm
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.preview import Piece, Preview, Row, preview, show
from rlhf.models.policy import FromScratch
from rlhf.types import Form


def shown(found: Preview, **console) -> str:
    file = io.StringIO()
    show("stage", found, Console(file=file, **console))
    return file.getvalue()


def targets(row: Row) -> list[str]:
    return [piece.text for piece in row.pieces if piece.target]


def test_demonstrations_show_the_response_and_its_end(tmp_path) -> None:
    template = Plain(prompt_format="Q {prompt}", response_format=" {response}")
    algorithm = tiny_runs.sft(data=tiny_runs.data("demonstration", template=template, eval_rows=0))
    found = preview(algorithm, tiny_runs.context(tmp_path))
    texts = {"Q " + row["prompt"]: f" {row['response']}<|end|>" for row in tiny_runs.rows("demonstration", 24)}
    assert found.form == "demonstration" and len(found.rows) == 4
    for row in found.rows:
        (prompt, response) = row.pieces
        assert texts[prompt.text] == response.text and (prompt.target, response.target) == (False, True)
        assert row.source == "toy" and 0 < row.targets < row.tokens
    batch = OfflineTrainer(algorithm, tiny_runs.context(tmp_path)).next_batch()  # the batch of the first step
    assert [row.targets for row in found.rows] == batch.mask.sum(1).tolist()
    assert [row.tokens for row in found.rows] == batch.sequences.attention_mask.sum(1).tolist()
    assert list(tmp_path.iterdir()) == []


def test_conversations_show_every_assistant_turn(tmp_path) -> None:
    policy = FromScratch(config=tiny_runs.policy().config, vocab_size=280, chat_template="turns")
    data = Data(sources={"talks": tiny_runs.source("talk", 6)}, template=Chat(), max_tokens=200, eval_rows=0)
    model = dataclasses.replace(policy, config={**policy.config, "n_positions": 200})
    algorithm = tiny_runs.sft(policy=model, data=data, batch_size=6)
    said = {
        "".join(m["content"] for m in row["messages"]): [
            m["content"] + "<|end|>" for m in row["messages"] if m["role"] == "assistant"
        ]
        for row in tiny_runs.rows("talk", 6)
    }
    rows = preview(algorithm, tiny_runs.context(tmp_path)).rows
    assert sorted(map(targets, rows)) == sorted(said.values())
    packed = preview(dataclasses.replace(algorithm, packing=True), tiny_runs.context(tmp_path)).rows
    assert sorted(text for row in packed for text in targets(row)) == sorted(
        t for texts in said.values() for t in texts
    )
    assert len(packed) < 6


def test_pairs_show_both_responses(tmp_path) -> None:
    found = preview(tiny_runs.reward_modelling(batch_size=2), tiny_runs.context(tmp_path))
    assert [row.kind for row in found.rows] == ["chosen", "rejected"] * 2
    for chosen, rejected in zip(found.rows[::2], found.rows[1::2], strict=True):
        assert targets(rejected) == [targets(chosen)[0].removesuffix("<|end|>").upper() + "<|end|>"]
        assert chosen.pieces[0] == rejected.pieces[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged(SFT):
    """Learns from judged responses."""

    form: ClassVar[Form] = "unpaired"

    def collate(self, examples, *, pad_id):
        return collate_unpaired(examples, pad_id=pad_id)


def test_judged_responses_show_their_label(tmp_path) -> None:
    algorithm = Judged(policy=tiny_runs.policy(), data=tiny_runs.data("comparison", 4, eval_rows=0), batch_size=8)
    found = preview(algorithm, tiny_runs.context(tmp_path))
    assert found.form == "unpaired" and len(found.rows) == 8
    for row in found.rows:
        text = targets(row)[0].removesuffix("<|end|>")
        assert text == (text.lower() if row.kind == "good" else text.upper())


def test_prompts_are_those_of_the_first_iteration(tmp_path) -> None:
    algorithm = tiny_runs.ppo(samples_per_prompt=2)
    found = preview(algorithm, tiny_runs.context(tmp_path))
    asked = OnlineTrainer(algorithm, tiny_runs.context(tmp_path)).next_prompts()
    assert [row.pieces for row in found.rows] == [[Piece(text, False)] for text in asked.text]
    assert len(found.rows) == 4 and "nothing is a target yet" in shown(found)


def test_the_mixtures_texts_are_shown_beside_the_prompts(tmp_path) -> None:
    mixture = Mixture(data=tiny_runs.data("text", 6), batch_size=3)
    found = preview(tiny_runs.ppo(mixture=mixture), tiny_runs.context(tmp_path))
    assert found.mixture is not None and found.mixture.form == "text" and len(found.mixture.rows) == 3
    texts = {row["text"] + "<|end|>" for row in tiny_runs.rows("text", 6)}
    for row in found.mixture.rows:  # nothing stands before the first token, so it cannot be learned
        assert "".join(piece.text for piece in row.pieces) in texts and row.targets == row.tokens - 1
    said = shown(found)
    assert "stage.mixture: the first batch, 3 rows of the form text, targets between" in said


@pytest.mark.parametrize("algorithm", [tiny_runs.sft(), tiny_runs.reward_modelling(), tiny_runs.ppo()], ids=repr)
def test_what_is_prepared_to_be_shown_is_found_by_the_run(tmp_path, algorithm) -> None:
    context = dataclasses.replace(tiny_runs.context(tmp_path / "stage"), cache_dir=str(tmp_path / "cache"))
    bare = preview(algorithm, tiny_runs.context(tmp_path / "stage"))
    assert preview(algorithm, context) == bare  # prepared
    trainer = (OnlineTrainer if isinstance(algorithm, PPO) else OfflineTrainer)(algorithm, context)
    assert trainer.data.origin.startswith("tokenised before, read from ")
    assert preview(algorithm, context) == bare  # read
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_other_families_need_a_preview_of_their_own(tmp_path) -> None:
    class Unknown(Algorithm):
        pass

    with pytest.raises(TypeError, match="no preview is registered for Unknown"):
        preview(Unknown(), tiny_runs.context(tmp_path))


FOUND = Preview("demonstration", [Row("", "toy", 7, 3, [Piece("a\t[b]\n", False), Piece("c<|end|>", True)])])


def test_marks_outside_a_terminal() -> None:
    assert shown(FOUND) == (
        "stage: the first batch, 1 rows of the form demonstration, targets between ⟦ and ⟧\n"
        "--- stage row 1: source toy, 7 tokens, 3 targets\n"
        "a\t[b]\n⟦c<|end|>⟧\n"
    )


def test_colours_in_a_terminal() -> None:
    text = shown(FOUND, force_terminal=True, color_system="standard", width=200)
    assert "\x1b[1;32mc<|end|>\x1b[0m" in text and "⟦" not in text and "[b]" in text
