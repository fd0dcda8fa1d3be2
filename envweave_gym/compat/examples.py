"""Small environments to start from."""

from envweave_gym.envs.toy.counter import CounterEnv as CounterEnv
from envweave_gym.envs.toy.echo import EchoEnv as EchoEnv
from envweave_gym.envs.toy.lineworld import LineWorldEnv as LineWorldEnv
