"""Runs the demo :mod:`envweave_gym.training.gsm8k_tinker`."""

from envweave_gym.training.gsm8k_tinker import main

if __name__ == "__main__":
    raise SystemExit(main())
