"""Serialises values, spaces and messages as msgpack; nothing is pickled."""
