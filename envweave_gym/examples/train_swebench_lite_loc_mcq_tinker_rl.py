"""Runs the demo :mod:`envweave_gym.training.swebench_loc_mcq_tinker`."""

from envweave_gym.training.swebench_loc_mcq_tinker import main

if __name__ == "__main__":
    raise SystemExit(main())
