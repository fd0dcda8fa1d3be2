from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv


class Duel(ParallelEnv):
    metadata = {"name": "duel", "render_modes": []}

    def __init__(self, rounds=1):
        self.possible_agents, self.render_mode, self.rounds = ["left", "right"], None, rounds

    def observation_space(self, agent):
        return Discrete(1)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.played = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.played += 1
        agents, over = self.agents, self.played >= self.rounds
        self.agents = [] if over else agents
        rewards = {agent: float(actions[agent]) for agent in agents}
        ends = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        return dict.fromkeys(agents, 0), rewards, *ends, {agent: {} for agent in agents}
