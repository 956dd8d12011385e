"""Stopping on signals: what is noted, what acts at once, and that everything is as before afterwards."""

import os
import signal
import threading

import pytest

from rlhf import interruption
from rlhf.interruption import Stopped, StopRequest, held, sigterm_raises

BOTH = [signal.SIGINT, signal.SIGTERM]


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_are_left_as_found():
    before = {number: signal.getsignal(number) for number in BOTH}
    yield
    assert {number: signal.getsignal(number) for number in BOTH} == before


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_noted_and_told(number, capfd):
    request = StopRequest()
    assert request.signal is None
    with request.listening():
        send(number)
        assert request.signal == number
    assert "Stopping as soon as the run can go on from there" in capfd.readouterr().err
    error = request.stopped("step 3 of 7 is saved")
    assert error.exit_code == 128 + number and isinstance(error, KeyboardInterrupt)
    assert str(error) == f"stopped by {number.name}; step 3 of 7 is saved, and the same command continues from there"


def test_the_second_signal_acts_at_once():
    request = StopRequest()
    with pytest.raises(KeyboardInterrupt), request.listening():
        send(signal.SIGTERM)
        send(signal.SIGINT)
        pytest.fail("went on")
    assert request.signal == signal.SIGTERM
    request = StopRequest()
    with pytest.raises(Stopped) as error, sigterm_raises(), request.listening():
        send(signal.SIGINT)
        send(signal.SIGTERM)
        pytest.fail("went on")
    assert error.value.exit_code == 143


@pytest.mark.parametrize("number", BOTH)
def test_what_is_held_acts_at_the_end(number):
    done = []
    with pytest.raises(KeyboardInterrupt), sigterm_raises():
        with held():
            send(number)
            send(number)
            done.append("inside")
        pytest.fail("went on")
    assert done == ["inside"]
    with pytest.raises(KeyboardInterrupt) as error, held():
        send(signal.SIGINT)
        raise ImportError("what the import came to does not hide it")
    assert isinstance(error.value.__context__, ImportError)
    with held():
        pass


def test_what_a_batch_system_says_twice_is_the_same_wish(monkeypatch):
    monkeypatch.setenv(interruption.TWICE, "1")
    request = StopRequest()
    with request.listening():
        send(signal.SIGTERM)
        send(signal.SIGTERM)
    assert request.signal == signal.SIGTERM
    monkeypatch.setattr(interruption, "HANDED_ON", 0.0)
    with pytest.raises(KeyboardInterrupt), request.listening():
        send(signal.SIGTERM)
        send(signal.SIGINT)
        pytest.fail("went on")


def test_what_a_launcher_hands_on_is_the_same_wish(monkeypatch, capfd):
    """A batch system, or a terminal, sends to all processes what the launcher then sends to its own."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, times in (("0", 1), ("1", 0)):  # the main process alone speaks
        monkeypatch.setenv("RANK", rank)
        request = StopRequest()
        with request.listening():
            send(signal.SIGINT)
            send(signal.SIGTERM)
        assert request.signal == signal.SIGINT and capfd.readouterr().err.count("Stopping as soon as") == times
    done = []
    with pytest.raises(Stopped), sigterm_raises():
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGTERM)
            done.append("cleaned")
    assert done == ["cleaned"]
    monkeypatch.setattr(interruption, "HANDED_ON", 0.0)
    with pytest.raises(KeyboardInterrupt), StopRequest().listening():
        send(signal.SIGTERM)
        send(signal.SIGINT)
        pytest.fail("went on")


def test_sigterm_unwinds_the_stack():
    done = []
    with pytest.raises(Stopped) as error, sigterm_raises():
        try:
            send(signal.SIGTERM)
        finally:
            done.append("cleaned")
    assert error.value.exit_code == 143 and str(error.value) == "" and done == ["cleaned"]


def test_an_ignored_signal_stays_ignored():
    """A shell starts background jobs with SIGINT ignored: Ctrl-C in the foreground is not meant for them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request = StopRequest()
        with request.listening():
            send(signal.SIGINT)
        assert request.signal is None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_listen_to_nothing():
    seen = []

    def work():
        with StopRequest().listening(), sigterm_raises():
            seen.append([signal.getsignal(number) for number in BOTH])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[signal.getsignal(number) for number in BOTH]]


def test_asked_in_one_process_all_of_them_stop():
    asked, other = StopRequest(), StopRequest()
    assert not asked.wanted() and not asked.wanted(lambda value: value + 0.0)
    asked.signal = signal.SIGINT
    assert asked.wanted() and asked.wanted(lambda value: value + 0.0)
    assert other.wanted(lambda value: value + 1.0)  # this process was not asked, another was
    assert asked.signal == signal.SIGINT and other.stopped("x").exit_code == 128 + signal.SIGTERM
