"""Games and other environments with several agents, plain PettingZoo."""
