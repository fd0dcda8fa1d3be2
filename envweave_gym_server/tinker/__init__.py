"""A server for the Tinker SDK: LoRA training and sampling of a local base model, with Flask and torch."""
