"""``python -m rlhf.chat --model DIR``: talk to what a run has left."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlhf.command import guarded, import_heavy, prepare_environment
from rlhf.errors import UserError

if TYPE_CHECKING:
    from rlhf.chat.session import Session

SAMPLING = ("temperature", "top_k", "top_p", "max_new_tokens", "greedy")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rlhf.chat",
        description="Talks to a model, several turns, as it was prompted and sampled from in its training. In a "
        "terminal the answer appears as it is drawn, and /help lists the commands. From a pipe each line is a turn, "
        "and only the answers are printed.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="DIR",
        help="a saved model, a stage's folder, a run's folder (its last model), or a hub name",
    )
    parser.add_argument("--ema", action="store_true", help="take the averaged policy, ema/, instead of model/")
    parser.add_argument("--compare", metavar="DIR", help="a second model, answering beside the first")
    parser.add_argument("--reward", metavar="DIR", help="a reward model that scores the answers")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--once", action="store_true", help="take all of the standard input as one turn")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers: same lines, same answers")
    group = parser.add_argument_group("how answers are drawn (as in the model's training where not given)")
    group.add_argument("--temperature", type=float, help="divides the logits")
    group.add_argument("--top_k", type=int, help="draw among the k most probable tokens")
    group.add_argument("--top_p", type=float, help="draw among the most probable tokens of this total probability")
    group.add_argument("--max_new_tokens", type=int, help="longest answer")
    group.add_argument("--greedy", action="store_true", default=None, help="take the most probable token")
    return parser


def _session(options: argparse.Namespace, *, terminal: bool) -> Session:
    import_heavy("rlhf.chat.loading")
    from rlhf.chat.folders import find_model, find_reward_model
    from rlhf.chat.loading import load_speaker, names_of
    from rlhf.chat.screens import Pipe, Terminal
    from rlhf.chat.session import Session

    given: dict[str, Any] = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    paths = [find_model(options.model, ema=options.ema)]
    if options.compare is not None:
        paths.append(find_model(options.compare))
    reward = None if options.reward is None else find_reward_model(options.reward)
    speakers = [
        load_speaker(path, name=name, reward=reward, settings=given)
        for path, name in zip(paths, names_of(paths), strict=True)
    ]
    session = Session(speakers, Terminal() if terminal else Pipe(), seed=options.seed)
    if options.system is not None:
        session.command(f"/system {options.system}")
    if differences := session.differences():
        session.screen.say(f"the models are drawn from differently, as in their training: {differences}")
    return session


def _typed() -> Iterator[str]:
    """The lines of a person, with the terminal's editing and history."""
    import readline  # noqa: F401  # gives input() its editing

    while True:
        try:
            yield input("\n› ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n/quit, or Ctrl-D, leaves", end="")


def _piped(session: Session) -> int:
    """Each line is a turn. Of one that cannot be said, an empty line is the answer, and the talk goes on."""
    from rlhf.chat.session import is_command

    code = 0
    for number, line in enumerate(sys.stdin, 1):
        try:
            if not session.line(line):
                break
        except UserError as error:
            if is_command(line):  # what follows may rest on it
                raise UserError(f"line {number}: {error}") from None
            print(flush=True)
            session.screen.say(f"line {number}: {error}; it is passed over")
            code = 1
    return code


def _talk(argv: Sequence[str] | None) -> int:
    options = _parser().parse_args(argv)
    terminal = sys.stdin.isatty() and not options.once
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # what is no text is refused where its line is known
    session = _session(options, terminal=terminal)
    if options.once:
        session.say(sys.stdin.read().strip("\n"))
        return 0
    if not terminal:
        return _piped(session)
    names = " and ".join(str(speaker.model.module.name_or_path) for speaker in session.speakers)
    session.screen.say(f"You talk to {names}. /help lists the commands.")
    for line in _typed():
        try:
            if not session.line(line):
                break
        except UserError as error:
            session.screen.say(str(error))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 done, 1 a folder holds no model, a piped command cannot be carried out, or a piped line not be
        said, 2 wrong arguments.
    """
    prepare_environment()
    return guarded(lambda: _talk(argv))


if __name__ == "__main__":
    sys.exit(main())
