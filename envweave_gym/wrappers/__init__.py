"""Wrappers for Gymnasium and PettingZoo environments; none of them knows a particular environment."""

from envweave_gym.wrappers.aec_stream import AECStream as AECStream
from envweave_gym.wrappers.autoreset import Autoreset as Autoreset
from envweave_gym.wrappers.gym_stream import RequestStream as RequestStream
from envweave_gym.wrappers.numeric_info import NumericInfo as NumericInfo
from envweave_gym.wrappers.parallel_stream import ParallelStream as ParallelStream
