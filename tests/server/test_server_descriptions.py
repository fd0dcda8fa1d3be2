"""What environments are described with: one at a time of each kind, a few at once, and never a spare one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from json_clients import JsonClient, sentence
from served_envs import Coin
from servers import until

from envweave_gym.core.faults import AtCapacity
from envweave_gym.wire.messages import Answer, Create, Refused, encode, read_reply
from envweave_gym_server import offer_of_factory
from envweave_gym_server.offers import descriptions
from envweave_gym_server.offers.descriptions import Descriptions

pytestmark = pytest.mark.usefixtures("registries")


class Counted(Coin):
    """Knows how many of it were made, and how many are open."""

    made = closed = 0
    go = threading.Event()

    def __init__(self, sides: int = 2, slow: bool = False, bad: bool = False):
        super().__init__(sides)
        type(self).made += 1
        if slow:
            assert self.go.wait(20)
        if bad:
            raise RuntimeError("made badly")

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def kind() -> type[Counted]:
    """A class with counts of its own."""
    return type("Kind", (Counted,), {"made": 0, "closed": 0, "go": threading.Event()})


def client_of(kind: type[Counted], **settings: Any) -> JsonClient:
    return JsonClient(offer_of_factory(kind, name="Kind", kwargs=("sides", "slow", "bad")), **settings)


def describe(client: JsonClient, api: str = "gym", **kwargs: Any) -> Any:
    create = encode(Create("Kind", api, kwargs))
    return read_reply(client.ask("POST", "/v1/describe", create, content_type="application/msgpack").data)


def test_a_vector_of_any_length_is_described_by_one_row(kind: type[Counted]):
    client = client_of(kind)
    for rows in (64, 128, 1):
        described = describe(client, "vector", num_envs=rows)
        assert isinstance(described, Answer)
        assert described.value["api"] == "vector"
    assert (kind.made, kind.closed) == (1, 1)
    refused = describe(client, "vector", num_envs=70_000)
    assert isinstance(refused, Refused)
    assert "num_envs=70000 is more than 65536" in refused.message


def test_the_order_and_the_name_of_what_is_asked_for_do_not_matter(kind: type[Counted]):
    client = client_of(kind)
    describe(client, sides=3, slow=False)
    describe(client, slow=False, sides=3)
    client.ask("POST", "/v1/describe", encode(Create("", "gym", {"slow": False, "sides": 3})))
    assert kind.made == 1


def test_steps_over_json_are_read_with_the_environment_of_the_session(kind: type[Counted]):
    client = client_of(kind)
    session = client.open("Kind", kwargs={"sides": 3})
    client.post(f"{session}/reset", {"seed": 1})
    assert client.post(f"{session}/step", {"action": 2})["observation"] == 2
    reported = client.post(f"{session}/step", {"action": "two"}, 422)
    assert sentence(reported).startswith("Kind: action 'two' is not in Discrete(3)")
    assert kind.made == 1
    rows = client.open("Kind", num_envs=3)
    client.post(f"{rows}/reset", {"seed": 1})
    assert client.post(f"{rows}/step", {"action": [0, 1, 1]})["observation"] == [0, 1, 1]
    assert kind.made == 4


def test_concurrent_creates_are_limited_and_the_next_is_refused(
    kind: type[Counted], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(descriptions, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(descriptions, "_PATIENCE_FOR_A_SLOT_S", 0.2)
    client = client_of(kind, max_descriptions=1)
    with ThreadPoolExecutor(3) as pool:
        slow = pool.submit(describe, client, slow=True)
        until(lambda: kind.made == 1)
        other, same = pool.submit(describe, client, sides=3), pool.submit(describe, client, slow=True)
        assert other.result(10).kind == same.result(10).kind == "AtCapacity"
        assert "1 of 1 environments are being made to be described" in other.result().message
        assert "Kind is still being made" in same.result().message
        assert kind.made == 1
        assert client.open("Kind")  # sessions have places of their own
        kind.go.set()
        assert isinstance(slow.result(10), Answer)
    assert isinstance(describe(client, sides=3), Answer)


def test_when_no_description_comes_to_its_end_others_are_refused_within_seconds(kind: type[Counted]):
    client = client_of(kind, max_descriptions=2)
    with ThreadPoolExecutor(2) as pool:
        stuck = [pool.submit(describe, client, slow=True, sides=sides) for sides in (2, 3)]
        until(lambda: kind.made == 2)
        began = time.monotonic()
        reported = client.get("/v1/envs/Kind", 503)
        assert time.monotonic() - began < 20
        assert sentence(reported) == (
            "2 of 2 environments are being made to be described, and none is done yet; come again"
        )
        kind.go.set()
        assert all(isinstance(one.result(10), Answer) for one in stuck)


def test_failed_creates_free_their_slot(kind: type[Counted]):
    client = client_of(kind, max_descriptions=1)
    for _ in range(3):
        assert describe(client, bad=True).message == "Kind cannot be made: RuntimeError: made badly"
    assert isinstance(describe(client), Answer)


def test_only_the_last_descriptions_are_kept():
    asked: list[int] = []

    def tell(create: Create) -> dict[str, Any]:
        asked.append(create.kwargs["n"])
        return {"n": create.kwargs["n"]}

    known = Descriptions(tell, 1)
    for number in (*range(1000), 999, 0):
        assert known.of(Create("x", "gym", {"n": number})) == {"n": number}
    assert asked == [*range(1000), 0]
    assert len(known._known) <= 256


def test_a_server_that_stops_makes_nothing_to_describe_it(kind: type[Counted]):
    client = client_of(kind)
    client.state.stop()
    with pytest.raises(AtCapacity, match="stopping"):
        client.state.description(Create("Kind"))
    assert kind.made == 0
