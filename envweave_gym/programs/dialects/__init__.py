"""Codecs of the five APIs in which programs call language models, over one normal form of requests and replies."""
