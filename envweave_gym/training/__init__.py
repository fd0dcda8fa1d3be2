"""Demos that train a policy: one file for each, run as ``python -m envweave_gym.training.lineworld``."""
