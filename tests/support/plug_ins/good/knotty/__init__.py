"""A package that imports from envweave_gym, and its own environments, before anything else."""

from envweave_gym import Unicode
from knotty.duel import Duel as Duel
from knotty.say import SayEnv as SayEnv

WORDS = Unicode(10)
