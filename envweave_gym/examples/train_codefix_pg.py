"""Runs the demo :mod:`envweave_gym.training.codefix`."""

from envweave_gym.training.codefix import main

if __name__ == "__main__":
    raise SystemExit(main())
