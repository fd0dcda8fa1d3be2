"""Small environments to start from."""

from envweave_gym.envs.counter import CounterEnv as CounterEnv
from envweave_gym.envs.echo import EchoEnv as EchoEnv
from envweave_gym.envs.lineworld import LineWorldEnv as LineWorldEnv
