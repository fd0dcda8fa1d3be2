"""The server as a program, and as a private process of the one that starts it."""
