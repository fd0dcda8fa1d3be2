"""What clients may say to a reset: what its author names, or its operator allows; refusals are true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from json_clients import JsonClient, sentence
from optional_tasks import Silent, Tasks
from servers import RunningServer, running_server

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.registry.catalog import EnvCard, register_card
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym_server import offer_of_factory

pytestmark = pytest.mark.usefixtures("registries")
TASKS = "tests/Tasks-v0"


def reset(client: JsonClient, name: str, options: dict[str, Any], status: int = 200, **fields: Any) -> Any:
    return client.post(client.open(name, **fields) + "/reset", {"seed": 1, "options": options}, status)


def named(client: JsonClient, name: str, api: str = "gym") -> list[str]:
    return client.get(f"/v1/envs/{name}?api={api}")["metadata"]["reset_options"]


def as_a_card() -> str:
    register_card(EnvCard(id=TASKS, doc="Tasks.", gym="optional_tasks:Tasks"))
    return TASKS


def as_a_strangers_id() -> str:
    gym.register(TASKS, Tasks, disable_env_checker=True, order_enforce=False)
    return TASKS


@pytest.mark.parametrize(
    "what", [lambda: Tasks, lambda: "optional_tasks:Tasks", lambda: offer_of_factory(Tasks), as_a_card]
)
def test_options_that_an_author_names_are_taken(what: Any):
    client = JsonClient(what())
    [name] = client.state.offers
    assert named(client, name) == named(client, name, "vector") == ["index"]
    assert reset(client, name, {"index": 7})["observation"] == 7
    assert reset(client, name, {"index": 7}, num_envs=2)["observation"] == [7, 7]
    masked = {"index": 7, "reset_mask": [True, True]}
    assert reset(client, name, masked, num_envs=2)["observation"] == [7, 7]
    by_row = {"rows": [{"index": 7}, {"index": 3}]}
    assert reset(client, name, by_row, num_envs=2)["observation"] == [7, 3]
    reported = reset(client, name, {"indx": 7}, 422)
    assert (
        sentence(reported)
        == f"{name}: reset takes no option 'indx' (did you mean 'index'?); it takes 'index'"
    )


def test_options_that_a_stranger_names_are_the_operators_to_allow():
    name = as_a_strangers_id()
    client = JsonClient(name)
    assert named(client, name) == []
    assert sentence(reset(client, name, {"index": 7}, 422)) == (
        f"{name}: this server lets no client give the reset option 'index'; it lets clients give none, and "
        "its operator may add to these with --allow-kwargs"
    )
    assert "it lets clients give reset_mask, rows, and" in sentence(
        reset(client, name, {"index": 7}, 422, num_envs=2)
    )
    reported = reset(client, name, {"rows": [{}, {"index": 7}]}, 422, num_envs=2)
    assert "lets no client give the reset option 'index'" in sentence(reported)
    reported = reset(client, name, {"other": 7}, 422)
    assert sentence(reported) == f"{name}: reset takes no option 'other'; it takes 'index'"

    client = JsonClient(name, wire_kwargs={name: ("index",)})
    assert named(client, name) == ["index"]
    assert reset(client, name, {"index": 7})["observation"] == 7


def test_where_an_author_names_none_the_operator_does():
    client = JsonClient(Silent)
    assert named(client, "Silent") == []
    reported = sentence(reset(client, "Silent", {"index": 7}, 422))
    assert "this server lets no client give the reset option 'index'" in reported
    client = JsonClient(Silent, wire_kwargs={"Silent": ["index"]})
    assert named(client, "Silent") == ["index"]
    assert reset(client, "Silent", {"index": 7})["observation"] == 7


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    kinds = ["optional_tasks:Tasks", "optional_tasks:Silent"]
    with running_server(*kinds, isolation=request.param) as running:
        remember_token(running.url, running.token)
        yield running


def test_a_client_knows_the_allowed_arguments_and_refuses_others_without_a_request(server: RunningServer):
    tasks = RemoteEnv(url=server.url, env_id="Tasks")
    assert tasks.reset(seed=1, options={"index": 7})[0] == 7
    env = RemoteEnv(url=server.url, env_id="Silent")
    env.reset(seed=1)
    with pytest.raises(InvalidArgument, match="reset takes no option 'index'"):
        env.reset(options={"index": 7})
    assert env.step(3)[0] == 3  # the episode goes on
    env.close()
    tasks.close()


def test_a_private_server_hands_every_option_on():
    env: Any = ew.make("CartPole-v1", backend="subprocess")
    observation, _ = env.reset(seed=1, options={"low": 0.0, "high": 0.0})
    assert not observation.any()
    env.close()
