"""Serialisation of values, spaces and messages as msgpack, without pickle."""
