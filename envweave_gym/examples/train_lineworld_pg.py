"""Runs the demo :mod:`envweave_gym.training.lineworld`."""

from envweave_gym.training.lineworld import main

if __name__ == "__main__":
    raise SystemExit(main())
