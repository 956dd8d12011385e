"""One model in a conversation: what it has heard and said, as the token ids that it saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf.data.conversations import plain, text
from rlhf.data.templates import Chat, Plain, RefusedConversation
from rlhf.engines.inference import Request, Sampling, sample
from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel, Scorer, Template
from rlhf.models.tokenizer import UNDECODABLE, TextStream
from rlhf.types import Conversation, Message, Prompts, joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Answer(NamedTuple):
    """What a model has said.

    Attributes:
        text: For people: without the end token and without bytes that are no character.
        ids: The ids drawn, the end token included.
        ended: Whether the model ended it, rather than the length limit or the person.
        score: The reward model's, where there is one and the answer was not stopped.
    """

    text: str
    ids: list[int]
    ended: bool
    score: float | None = None


class Turn(NamedTuple):
    """What was said, what was answered, and the answer as a source of data would have it."""

    user: str
    answer: Answer
    said: str


@dataclass
class Speaker:
    """A model with its own history of the conversation.

    Attributes:
        name: What it is called beside another.
        model: The language model.
        template: How texts become tokens: that of its training, where it is known.
        sampling: How it was sampled from in training, or the defaults.
        scorer: A reward model that judges its answers; None for none.
        system: What it is told before the conversation.
        turns: The conversation so far.
        forgotten: Turns, the oldest, that no longer fit into its context.
    """

    name: str
    model: LanguageModel
    template: Template
    sampling: Sampling
    scorer: Scorer | None = None
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    forgotten: int = 0

    def reply(
        self, user: str, sampling: Sampling, *, seed: int, counter: int, on_text: Callable[[str], None] | None = None
    ) -> Answer:
        """Answers, and takes both into the history. Ctrl-C ends the answer where it stands.

        Args:
            user: What is said to the model.
            sampling: How to draw.
            seed: Of the random numbers.
            counter: Which of the seed's sequences of random numbers: the same gives the same answer.
            on_text: Told each piece of the answer as it comes, in whole characters.
        """
        prompt, sampling = self._fitting(user, sampling)
        end = self.template.end_id(self.model.tokenizer)
        stops = sampling.stop_ids(self.model.tokenizer, end)
        ids: list[int] = []
        stream = TextStream(self.model.tokenizer)
        pieces: list[str] = []

        def listen(_: list[int], drawn: list[int]) -> None:
            ids.append(drawn[0])
            piece = "" if drawn[0] in stops else stream.push(drawn[0]).replace(UNDECODABLE, "")
            pieces.append(piece)
            if piece and on_text is not None:
                on_text(piece)

        ended, score = False, None
        try:
            prompts, tokenizer = self._prompts(prompt, user), self.model.tokenizer
            request = Request(prompts, sampling, tokenizer, seed, [counter], stops)
            rollout = sample(self.model.module, request, on_tokens=listen)
            ended = bool(rollout.ended[0])
            if self.scorer is not None:
                score = float(self.scorer(rollout).total[0])
        except KeyboardInterrupt:
            pass
        answer = Answer("".join(pieces), ids, ended, score)
        self.turns.append(Turn(user, answer, self.template.bare(answer.text)))
        return answer

    def _prompts(self, ids: list[int], user: str) -> Prompts:
        """What is to be answered, for the sampler and for reward models that read texts."""
        said = (*self._conversation(self.turns[self.forgotten :]), Message("user", user))
        return Prompts([ids], [text(plain(said))], ["chat"], {"messages": [[message._asdict() for message in said]]})

    def prompt(self, user: str) -> list[int]:
        """Ids of the conversation as the model is given it, before it answers ``user``: those of the training data."""
        return self._ids(self.turns[self.forgotten :], user)

    def seen(self) -> list[int]:
        """Ids that the model was last given, and its answer; nothing where nothing was said."""
        turns = self.turns[self.forgotten :]
        return [*self._ids(turns[:-1], turns[-1].user), *turns[-1].answer.ids] if turns else []

    def _ids(self, turns: Sequence[Turn], user: str) -> list[int]:
        said = plain((*self._conversation(turns), Message("user", user)))
        tokenizer = self.model.tokenizer
        if isinstance(said, str):
            return self.template.prompt(said, tokenizer)
        try:
            return joined(self.template.turns(said, tokenizer))
        except RefusedConversation:
            raise
        except UserError:
            if not isinstance(self.template, Chat) or self.template.targets == "last":
                raise
            # Nobody learns here, so nobody has to tell turns apart; training on such a conversation would have stopped.
            whole = dataclasses.replace(self.template, targets="last")
            return joined(whole.turns(said, tokenizer))

    def _conversation(self, turns: Sequence[Turn]) -> Conversation:
        told = [Message("system", self.system)] if self.system else []
        for turn in turns:
            told += [Message("user", turn.user), Message("assistant", turn.said)]
        return tuple(told)

    def _fitting(self, user: str, sampling: Sampling) -> tuple[list[int], Sampling]:
        """The prompt, and a sampling that stays within the model's positions.

        The oldest turns are forgotten until the answer has the room it may take, or half of all positions.
        """
        limit = getattr(self.model.module.config.get_text_config(), "max_position_embeddings", None)
        prompt = self.prompt(user)
        if limit is None:
            return prompt, sampling
        while self.forgotten < len(self.turns) and limit - len(prompt) < min(sampling.max_new_tokens, limit // 2):
            self.forgotten += 1
            prompt = self.prompt(user)
        room = min(limit - len(prompt), sampling.max_new_tokens)
        if room < 1:
            raise UserError(f"what you say has {len(prompt)} tokens, but the model has {limit} positions; say less")
        least = min(sampling.min_new_tokens, room)
        return prompt, dataclasses.replace(sampling, max_new_tokens=room, min_new_tokens=least)

    def undo(self) -> Turn | None:
        """Takes the last turn back; None where there is none."""
        turn = self.turns.pop() if self.turns else None
        self.forgotten = min(self.forgotten, len(self.turns))
        return turn

    def clear(self) -> None:
        """Forgets the conversation, not what the model was told before it."""
        self.turns.clear()
        self.forgotten = 0

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages, and of an answer that was cut that it did not end: what a file keeps."""
        found: list[dict[str, Any]] = [message._asdict() for message in self._conversation(self.turns)]
        for message, turn in zip(found[len(found) - 2 * len(self.turns) + 1 :: 2], self.turns, strict=True):
            message |= {} if turn.answer.ended else {"ended": False}
        return found

    def restore(self, messages: Sequence[dict[str, Any]]) -> None:
        """Takes a conversation up; its answers become ids as a response of the training data would.

        Raises:
            UserError: the messages are no conversation of a user and an assistant in turn.
        """
        system, turns, user = None, [], None
        end = self.template.end_id(self.model.tokenizer)
        for number, message in enumerate(messages, 1):
            role, content = message.get("role"), message.get("content")
            if not isinstance(content, str):
                raise UserError(f"message {number}: content is {content!r}; it must be a text")
            check_text(content, f"message {number}")
            if role == "system" and number == 1:
                system = content
            elif role == "user" and user is None:
                user = content
            elif role == "assistant" and user is not None:
                ids = self.template.response(content, self.model.tokenizer)
                ended = message.get("ended") is not False
                ids = ids if ended or ids[-1:] != [end] else ids[:-1]
                turns.append(Turn(user, Answer(content, ids, ended), content))
                user = None
            else:
                raise UserError(f"message {number}: role {role!r} out of turn; user and assistant must alternate")
        self.clear()
        self.system = system
        self.turns += turns


def check_text(text: str, what: str) -> None:
    """Refuses what no tokenizer can read: halves of characters, and bytes that were none.

    Raises:
        UserError: naming it by ``what``, and the first such place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what}: is no text in UTF-8 at character {error.start + 1}; convert it, with iconv say"
        ) from None


def default_template(tokenizer: PreTrainedTokenizerBase) -> Template:
    """The template of a model of which no run has told: the tokenizer's own for chats, else the bare text."""
    return Plain() if tokenizer.chat_template is None else Chat()
