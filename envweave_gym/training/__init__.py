"""Demos that learn: one file a demo, run as ``python -m envweave_gym.training.lineworld``."""
