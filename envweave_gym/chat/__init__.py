"""Episodes as chats: language models play environments and PettingZoo games by messages and replies.

:class:`ChatGame` is the one mechanism, which our own trainers and the adapters of others use. An environment is a game
with one role.
"""

from envweave_gym.chat.async_game import AsyncChatGame as AsyncChatGame
from envweave_gym.chat.game import ChatGame as ChatGame
from envweave_gym.chat.history import ChatHistory as ChatHistory
from envweave_gym.chat.history import ChatMessage as ChatMessage
from envweave_gym.chat.history import messages_since as messages_since
from envweave_gym.chat.history import text_of as text_of
from envweave_gym.chat.results import EpisodeLost as EpisodeLost
from envweave_gym.chat.rules import ChatRules as ChatRules
from envweave_gym.chat.rules import ChatTurn as ChatTurn
from envweave_gym.chat.rules import Ending as Ending
