"""Suites of text tasks and text games that other packages bring: TextArena, reasoning-gym, GEM, OpenSpiel."""
