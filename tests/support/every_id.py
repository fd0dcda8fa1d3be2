"""The IDs that the package registers, and arguments with which each can be made on any machine.

Environments over data sets take generated rows (``dataset="synthetic"``): the default needs the hub or the
folder ``ENVWEAVE_DATA``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from envweave_gym.registry.catalog import CARDS

SELF_CONTAINED = [card for card in CARDS if card.is_self_contained]
"""The cards of environments that need no package or server which a machine may lack."""
GYM_IDS = [card.id for card in SELF_CONTAINED if not card.is_game]
GAME_IDS = [card.id for card in SELF_CONTAINED if card.is_game]
TRIAL: dict[str, dict[str, Any]] = {card.id: card.trial for card in SELF_CONTAINED}
GYM_TRIALS_JSON = json.dumps({env_id: TRIAL[env_id] for env_id in GYM_IDS})
"""What a script is given that makes each Gymnasium ID."""

any_gym_id = pytest.mark.parametrize("env_id", GYM_IDS)
any_game_id = pytest.mark.parametrize("env_id", GAME_IDS)
