"""The commands of a conversation."""

import json

import pytest

from rlhf.chat.loading import load_speaker
from rlhf.chat.session import COMMANDS, Session
from rlhf.errors import UserError


class Recorder:
    """A screen that keeps what it is shown."""

    def __init__(self):
        self.shown, self.said = [], []

    def answers(self, speakers, ask):
        self.shown.append([ask(speaker, lambda _: None).text for speaker in speakers])

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def session(speaker):
    return Session([speaker], Recorder(), seed=1)


@pytest.fixture
def two(stage):
    speakers = [load_speaker(str(stage / name), name=name) for name in ("model", "ema")]
    return Session(speakers, Recorder(), seed=1)


def turns(session):
    return [turn.user for turn in session.speakers[0].turns]


def test_lines_are_said_and_empty_ones_are_not(session):
    assert session.line("ab\n") and session.line("  \n") and session.line("//x\n")
    assert turns(session) == ["ab", "/x"] and len(session.screen.shown) == 2


def test_the_same_lines_give_the_same_conversation(stage, session):
    again = Session([load_speaker(str(stage / "model"), name="x")], Recorder(), seed=1)
    for line in ("ab", "cd", "/retry", "ef"):
        session.line(line)
        again.line(line)
    assert session.screen.shown == again.screen.shown and len(set(map(str, session.screen.shown))) > 1


def test_retry_draws_anew_and_keeps_the_history(session):
    session.line("ab")
    session.line("cd")
    before = session.speakers[0].turns[1].answer.ids
    session.line("/retry")
    assert turns(session) == ["ab", "cd"] and session.speakers[0].turns[1].answer.ids != before
    session.line("/set seed 1")  # and from the seed's first numbers again, in another place
    assert session.counter == 0


def test_undo_and_clear(session):
    for line in ("ab", "cd", "/undo"):
        session.line(line)
    assert turns(session) == ["ab"]
    session.line("/clear")
    assert turns(session) == []
    for command in ("/undo", "/retry"):
        with pytest.raises(UserError, match="nothing has been said"):
            session.line(command)


def test_settings_are_checked_and_changed(session):
    for line in (
        "/set temperature 0.7",
        "/set top_k 5",
        "/set greedy on",
        "/set seed 9",
        "/set top_p 0.9",
        "/set top_p none",
    ):
        session.line(line)
    made = session.sampling["one"]
    assert (made.temperature, made.top_k, made.greedy, made.top_p, session.seed) == (0.7, 5, True, None, 9)
    for line, text in (
        ("/set temprature 1", "Did you mean temperature?"),
        ("/set temperature", "write /set NAME VALUE"),
        ("/set temperature warm", "/set temperature: 'warm' is not a number"),
        ("/set temperature -1", "temperature: -1.0; give a positive number"),
        ("/set temperature", "/set: write /set NAME VALUE. Now: temperature 0.7"),
        (
            "/set",
            "/set: write /set NAME VALUE. Now: temperature 0.7; top_k 5; top_p null; min_p null; "
            "repetition_penalty 1.0; greedy true",
        ),
        ("/set top_k x", "/set top_k: 'x' is not a whole number or null"),
        ("/set greedy x", "/set greedy: 'x' is not true or false"),
        ("/set max_rows 3", "/set: there is no max_rows."),
        ("/set seed none", "/set seed: 'none' is not a whole number"),
    ):
        with pytest.raises(UserError) as caught:
            session.line(line)
        assert text in str(caught.value)
    assert session.sampling["one"] == made and "max_rows" not in str(caught.value)
    session.line("/set top_k null")
    assert session.screen.said[-1] == "top_k: null"


def test_greedy_answers_are_all_the_same(session):
    session.line("/set greedy on")
    session.line("ab")
    session.line("/retry")
    assert session.screen.shown[0] == session.screen.shown[1]


def test_a_system_text_that_the_template_does_not_know_is_said(session):
    session.line("/system be brief")
    assert session.speakers[0].system == "be brief" and "knows no system text" in session.screen.said[-1]
    session.line("/system")
    assert session.speakers[0].system is None


def test_show_shows_the_settings_and_what_the_model_is_given(session):
    session.line("/show")
    assert "nothing said yet" in session.screen.said[-1]
    session.line("ab")
    session.line("/show")
    assert "temperature: 1.5" in session.screen.said[-1] and "QabA" in session.screen.said[-1]


def test_save_and_load(session, tmp_path):
    path = tmp_path / "talk.json"
    for line in ("/system be", "ab", "cd", f"/save {path}", "/clear", f"/load {path}"):
        session.line(line)
    content = json.loads(path.read_text())
    assert content["seed"] == 1 and content["sampling"]["one"]["max_new_tokens"] == 6
    assert content["conversations"][0]["messages"] == session.speakers[0].messages()
    assert turns(session) == ["ab", "cd"] and session.screen.said[-1] == f"2 turns from {path}"
    path.write_text(json.dumps([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]))
    session.line(f"/load {path}")
    assert turns(session) == ["x"]


@pytest.mark.parametrize("content", ["no json", "{}", "[1]", '{"conversations": [{}]}', '{"conversations": []}'])
def test_a_file_that_holds_no_conversation(session, tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(UserError, match="that /save has written"):
        session.line(f"/load {tmp_path / 'x'}")


def test_files_that_cannot_be_used(session, tmp_path):
    (tmp_path / "file").write_text("x")
    inside = tmp_path / "file" / "x"  # a file is no folder
    for line in ("/save", "/save --overwrite", f"/save {inside}", f"/save {tmp_path}", f"/load {inside}", "/load"):
        with pytest.raises(UserError, match=r"^/(save|load)") as caught:
            session.line(line)
        assert "partial" not in str(caught.value)
    with pytest.raises(UserError, match="name another file"):
        session.line(f"/save {inside}")


def test_a_file_that_is_there_is_only_overwritten_when_that_is_asked_for(session, tmp_path):
    path = tmp_path / "deep" / "a talk.json"
    session.line(f"/save {path}")
    before = path.read_text()
    session.line("ab")
    with pytest.raises(UserError, match=r"^/save: .*a talk\.json is there already; /save --overwrite .*a talk\.json"):
        session.line(f"/save {path}")
    assert path.read_text() == before
    session.line(f"/save --overwrite {path}")
    assert path.read_text() != before and session.screen.said[-1] == f"saved in {path}"
    session.line(f"/load {path}")
    assert session.screen.said[-1] == f"1 turn from {path}"


def test_what_does_not_show_is_confirmed(session):
    for line, said in (
        ("/set temperature 0.5", "temperature: 0.5"),
        ("/set seed 3", "seed: 3"),
        ("/system be", "the models are told this before the conversation"),
        ("/clear", "the conversation is forgotten"),
    ):
        session.line(line)
        assert said in session.screen.said[-2:]
    session.line("ab")
    session.line("/undo")
    assert session.screen.said[-1] == "taken back: ab"


def test_what_is_no_text_is_refused_wherever_it_comes_from(session, tmp_path):
    (tmp_path / "x").write_text('[{"role": "user", "content": "a\\ud800"}, {"role": "assistant", "content": "y"}]')
    for line, what in (
        ("a\udcff", "what you say"),
        ("/system \udcff", "/system"),
        (f"/load {tmp_path / 'x'}", "message 1"),
    ):
        with pytest.raises(UserError, match=rf"^{what}: is no text in UTF-8 at character"):
            session.line(line)
    assert turns(session) == [] and session.speakers[0].system is None


def test_two_models_answer_the_same_with_the_same_random_numbers(two, tmp_path):
    two.line("ab")
    two.line("cd")
    alone = Session([two.speakers[1]], Recorder(), seed=1)
    two.speakers[1].clear()
    alone.line("ab")
    assert alone.screen.shown[0] == [two.screen.shown[0][1]]
    assert two.screen.shown[0][0] != two.screen.shown[0][1]  # other weights


def test_commands_are_for_both_of_two(two, tmp_path):
    for line in ("ab", "cd", "/undo", "/system be", "/set top_k 2", f"/save {tmp_path / 'x'}", "/clear"):
        two.line(line)
    assert [one.turns for one in two.speakers] == [[], []] and {one.system for one in two.speakers} == {"be"}
    assert {one.top_k for one in two.sampling.values()} == {2}
    two.line(f"/load {tmp_path / 'x'}")
    assert [len(one.turns) for one in two.speakers] == [1, 1]
    assert [c["model"] for c in json.loads((tmp_path / "x").read_text())["conversations"]] == ["model", "ema"]
    one = Session(two.speakers[:1], Recorder())
    with pytest.raises(UserError, match="holds 2 conversations"):
        one.line(f"/load {tmp_path / 'x'}")


def test_where_one_of_two_cannot_answer_neither_has_heard_it(two):
    two.speakers[1].template = None  # breaks before it answers

    class Refusing(type(two.speakers[0])):
        def reply(self, *_, **__):
            raise UserError("no room")

    two.speakers[1].__class__ = Refusing
    with pytest.raises(UserError, match="no room"):
        two.line("ab")
    assert [one.turns for one in two.speakers] == [[], []]


def test_what_is_forgotten_is_said(session):
    for number in range(8):
        session.line(f"abcdefgh{number}")
    assert any("turns are forgotten" in text for text in session.screen.said)


def test_quit_ends_it_and_unknown_commands_are_errors(session):
    assert session.line("/quit") is False
    with pytest.raises(UserError, match=r"there is no command /undp. Did you mean /undo\? /help lists them"):
        session.line("/undp")


def test_help_lists_every_command_and_every_command_works(session):
    session.line("/help")
    assert all(command in session.screen.said[0] for command in COMMANDS)
    names = [command.split(" ")[0][1:] for command in COMMANDS]
    assert [name for name in names if name != "quit" and not hasattr(session, f"_{name}")] == []
