"""The server as a program, and as a private process of the program that starts it."""
