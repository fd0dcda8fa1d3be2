"""Registers the ID of :mod:`command_env`, for servers that are told to import this module."""

from command_env import CARD

from envweave_gym.registry.catalog import register_card

register_card(CARD, package="tests")
