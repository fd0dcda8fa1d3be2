"""Servers in Ray actors."""

from envweave_gym.providers.ray.ray_replica import ray_start as ray_start
from envweave_gym.providers.ray.ray_replica import ray_urls as ray_urls
