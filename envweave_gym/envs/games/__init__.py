"""Games and other environments with several agents, with the plain API of PettingZoo."""
