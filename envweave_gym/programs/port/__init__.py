"""The model port: a loopback HTTP endpoint that poses as a language model, with a thread for each connection."""
