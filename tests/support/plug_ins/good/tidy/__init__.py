"""A package whose cards can be read without its environments."""
