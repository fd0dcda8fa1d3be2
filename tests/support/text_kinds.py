"""Tests of the text spaces run once for each kind of them."""

from __future__ import annotations

import pytest
from text_envs import KINDS, LEAVES

each_kind = pytest.mark.parametrize("kind", KINDS)
each_leaf = pytest.mark.parametrize("leaf", LEAVES)
