import gymnasium as gym
from gymnasium.spaces import Discrete


class GuessEnv(gym.Env):
    metadata = {"render_modes": ["ansi"]}

    def __init__(self, highest=9, render_mode=None):
        self.observation_space, self.action_space = Discrete(1), Discrete(highest + 1)
        self.highest, self.render_mode = highest, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(self.highest + 1))
        return 0, {}

    def step(self, action):
        return 0, float(action == self.number), bool(action == self.number), False, {}
