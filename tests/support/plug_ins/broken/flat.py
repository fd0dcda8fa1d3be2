"""One module for cards and environments: it works unless it is imported before envweave_gym."""

from tidy.guess import GuessEnv

from envweave_gym import EnvCard


class FlatEnv(GuessEnv):
    pass


CARDS = [EnvCard(id="flat/Guess-v0", doc="Guess.", gym="flat:FlatEnv")]
