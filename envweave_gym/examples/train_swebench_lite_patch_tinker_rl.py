"""Runs the demo :mod:`envweave_gym.training.swebench_patch_tinker`."""

from envweave_gym.training.swebench_patch_tinker import main

if __name__ == "__main__":
    raise SystemExit(main())
