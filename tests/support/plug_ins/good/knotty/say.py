import gymnasium as gym

from envweave_gym import Unicode


class SayEnv(gym.Env):
    metadata = {"render_modes": []}

    def __init__(self):
        self.observation_space = self.action_space = Unicode(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "go", {}

    def step(self, action):
        return action, 1.0, True, False, {}
