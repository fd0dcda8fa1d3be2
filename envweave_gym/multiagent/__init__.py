"""Multi-agent environments, plain PettingZoo, one a file; and ``TurnBasedParallel`` for games in turns."""
