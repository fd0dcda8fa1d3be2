"""Small environments to start from: Echo, Counter and LineWorld."""
