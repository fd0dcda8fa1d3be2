"""Small environments that can be copied as a start for new ones, and the demos that train, under their former names."""

from envweave_gym.envs.toy.counter import CounterEnv as CounterEnv
from envweave_gym.envs.toy.echo import EchoEnv as EchoEnv
from envweave_gym.envs.toy.lineworld import LineWorldEnv as LineWorldEnv
