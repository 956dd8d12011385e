"""A reward model behind an address, against a real server on this machine."""

import builtins
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from tiny_models import ForwardEngine, rollout

from rlhf.models.rewards import RemoteReward

Answer = tuple[int, bytes | dict[str, Any]]


class Server(ThreadingHTTPServer):
    """Answers each request with what ``answer(number of the request, its body)`` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Callable[[int, dict[str, Any]], Answer] = lambda _, body: (200, scores(body))
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """A client that has given up waiting is no fault of ours."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            number = len(self.server.requests)
        status, content = self.server.answer(number, body)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        if status in (301, 302):
            self.send_header("Location", "http://elsewhere.invalid/")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def scores(body: dict[str, Any]) -> dict[str, Any]:
    return {"scores": [float(len(response)) for response in body["responses"]]}


@pytest.fixture
def server():
    live = Server()
    thread = threading.Thread(target=live.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield live
    live.shutdown()
    thread.join()
    live.server_close()


def ask(url: str, texts: list[str], given: dict[str, list[Any]] | None = None, **settings: Any) -> list[float]:
    reward = RemoteReward(url=url, **{"timeout": 20.0, "retries": 2, "backoff": 0.01, **settings})
    return reward.build(ForwardEngine(), cast(Any, None))(rollout(texts, columns=given)).total.tolist()


def test_requests_are_cut_and_their_answers_put_in_order(server):
    def the_first_is_the_last(number, body):
        time.sleep(0.05 if "" in body["responses"] else 0.0)
        return 200, scores(body)

    server.answer = the_first_is_the_last
    texts, gold = ["x" * n for n in range(7)], list(range(7))
    found = ask(server.url, texts, {"gold": gold, "other": gold}, columns=["gold"], batch_size=3, concurrency=3)
    assert found == [0, 1, 2, 3, 4, 5, 6]
    sent = sorted(server.requests, key=lambda body: body["gold"])
    assert [body["gold"] for body in sent] == [[0, 1, 2], [3, 4, 5], [6]]
    assert sent[2] == {"prompts": ["p"], "responses": ["xxxxxx"], "gold": [6]}


def test_requests_are_under_way_at_once(server):
    barrier = threading.Barrier(3)

    def together(number, body):
        barrier.wait(timeout=20.0)
        return 200, scores(body)

    server.answer = together
    assert ask(server.url, ["a", "b", "c"], batch_size=1, concurrency=3) == [1, 1, 1]


def test_headers_and_the_token_of_the_environment(server, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    ask(server.url, ["é"], headers={"X-Team": "a"}, token_variable="MY_TOKEN")
    assert server.requests == [{"prompts": ["p"], "responses": ["é"]}]
    sent = server.headers[0]
    assert (sent["X-Team"], sent["Authorization"], sent["Content-Type"]) == ("a", "Bearer secret", "application/json")
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(ValueError, match="token_variable: the environment has no MY_TOKEN"):
        RemoteReward(url=server.url, token_variable="MY_TOKEN").check_inputs()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_says_later_is_tried_again(server, status):
    server.answer = lambda number, body: (status, b"busy") if number < 3 else (200, scores(body))
    assert ask(server.url, ["abc"]) == [3]
    assert len(server.requests) == 3


def test_an_answer_that_takes_too_long_is_tried_again(server):
    released = threading.Event()

    def slow_once(number, body):
        if number == 1:
            released.wait(timeout=20.0)
        return 200, scores(body)

    server.answer = slow_once
    assert ask(server.url, ["abc"], timeout=1.0) == [3]
    released.set()
    assert len(server.requests) == 2


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (400, 1), (404, 1), (302, 1)])
def test_the_status_is_told_when_there_is_no_other(server, status, tries):
    server.answer = lambda *_: (status, b"out of order")
    moved = " to http://elsewhere.invalid/" if status == 302 else ""
    with pytest.raises(ValueError, match=rf"^url: {server.url} answered with status {status}{moved}: 'out of order'"):
        ask(server.url, ["a"])
    assert len(server.requests) == tries


@pytest.mark.parametrize(("content", "message"), [
    ({"scores": [1.0]}, "answered 1 scores for 2 responses"), (b'{"scores": [1.0, NaN]}', "answered nan, no finite"),
    (b'{"scores": [1.0, 1e999]}', "answered inf, no finite number, for 'second'"),
    ({"scores": [1.0, None]}, "answered None, no finite number, for 'second'"),
    ({"scores": [1.0, "2"]}, "answered '2', no finite number"), ({"scores": 2.0}, "it must be 2 numbers"),
    ({"score": [1.0, 2.0]}, "it must be JSON of the form"), (b"[1.0, 2.0]", "it must be JSON of the form"),
    (b"<html>\xff</html>", "answered '<html>.</html>'; it must be JSON of the form"), (b"", "answered ''"),
])  # fmt: skip
def test_wrong_answers_are_named_and_not_asked_for_again(server, content, message):
    server.answer = lambda *_: (200, content)
    with pytest.raises(ValueError, match=f"^url: {server.url} .*{message}"):
        ask(server.url, ["first", "second"])
    assert len(server.requests) == 1


def test_a_server_that_is_not_there(server):
    with Server() as gone:
        url = gone.url
    with pytest.raises(ValueError, match=rf"^url: {url} gave no answer in 3 tries \(.*refused.*start the server"):
        ask(url, ["a"])
    released = threading.Event()
    server.answer = lambda *_: (released.wait(timeout=20.0) and 200, {})
    with pytest.raises(ValueError, match=r"gave no answer in 1 tries \(.*timed out.*raise timeout"):
        ask(server.url, ["a"], timeout=0.1, retries=0)
    released.set()


def test_columns_that_cannot_be_sent(server):
    with pytest.raises(ValueError, match="columns: the data has no column gold; columns there: other"):
        ask(server.url, ["a"], {"other": [1]}, columns=["gold"])
    with pytest.raises(ValueError, match="columns: what is to be sent has no JSON"):
        ask(server.url, ["a"], {"gold": [object()]}, columns=["gold"])
    with pytest.raises(ValueError, match="columns: what is to be sent has no JSON"):
        ask(server.url, ["a"], {"gold": [float("nan")]}, columns=["gold"])
    assert server.requests == []


@pytest.mark.parametrize(("settings", "message"), [
    ({"url": "localhost:80"}, "url: 'localhost:80' is no address"), ({"url": "ftp://x/y"}, "is no address to post to"),
    ({"url": "http:///x"}, "is no address"), ({"batch_size": 0}, "batch_size is 0"), ({"timeout": 0.0}, "timeout is 0"),
    ({"concurrency": 0}, "concurrency is 0"), ({"retries": -1}, "retries is -1"), ({"backoff": -1.0}, "backoff is -1"),
    ({"columns": ["prompts"]}, "columns: prompts is sent anyway"),
])  # fmt: skip
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        RemoteReward(**{"url": "http://x", **settings})


def test_a_missing_package_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "urllib3":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"urllib3 is not installed; pip install 'rlhf\[remote\]'"):
        RemoteReward(url="http://x").check_inputs()
