"""One environment behind messages: calls, questions, its thread, and which reset options clients may give."""
