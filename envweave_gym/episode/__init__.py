"""Streams of requests and events, messages, and the records that build them."""
