"""Who must act next and what has happened in an episode: requests, events, streams and lost episodes."""
