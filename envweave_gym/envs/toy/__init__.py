"""Small environments to learn from: Echo, Counter and LineWorld."""
