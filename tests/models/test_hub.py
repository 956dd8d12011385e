"""The hub is asked only where it answers."""

import time

import huggingface_hub
import pytest
from huggingface_hub import constants

from rlhf.data.sources import Hub
from rlhf.errors import UserError
from rlhf.models import hub
from rlhf.models.hub import hub_or_cache
from rlhf.models.policy import Pretrained


class Client:
    """Stands for the hub's HTTP client."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    def head(self, url, timeout):
        self.asked.append((url, timeout))
        if self.error:
            raise self.error


@pytest.fixture
def online(monkeypatch):
    """The libraries' online mode, with a client that never leaves this machine."""

    def use(client):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub, "get_session", lambda: client)
        return client

    return use


def test_a_hub_that_answers_is_asked(online):
    client = online(Client())
    with hub_or_cache() as answers:
        assert answers and not constants.HF_HUB_OFFLINE
    assert client.asked == [(constants.ENDPOINT, hub.PATIENCE)]


def test_a_hub_that_does_not_is_left_alone_until_the_end_of_the_block(online):
    online(Client(OSError("no network")))
    with pytest.raises(ZeroDivisionError), hub_or_cache() as answers:
        assert not answers and constants.HF_HUB_OFFLINE
        raise ZeroDivisionError
    assert not constants.HF_HUB_OFFLINE


def test_offline_mode_asks_nobody(online, monkeypatch):
    client = online(Client())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with hub_or_cache() as answers:
        assert not answers
    assert client.asked == [] and constants.HF_HUB_OFFLINE


# case H3
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: Pretrained(path="no-such-model").check_inputs(),
            "no-such-model is no folder in .* does not answer",
        ),
        (lambda: Pretrained(path="no/such-model").build(lambda: (), seed=1), "no/such-model is no folder in "),
        (lambda: Hub(name="nobody/nothing").load(), "nobody/nothing: cannot be loaded from the hub"),
    ],
)
def test_without_a_network_a_hub_name_fails_fast(online, use, message):
    online(Client(OSError("no network")))
    start = time.monotonic()
    with pytest.raises(UserError, match=message):
        use()
    assert time.monotonic() - start < 10
