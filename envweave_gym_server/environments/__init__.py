"""Execution of messages on one environment: calls, questions, description and reset options."""
