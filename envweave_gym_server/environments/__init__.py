"""One environment behind messages: its calls, questions, thread, description and reset options."""
