"""Generates synthetic word problems in the form of GSM8K."""
