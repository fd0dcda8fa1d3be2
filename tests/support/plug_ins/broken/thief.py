CARDS = [{"id": "tidy/Guess-v0", "doc": "Mine now.", "gym": "thief:Env"}]
