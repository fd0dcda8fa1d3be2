"""Connections for everybody who speaks to another process: deadlines and framed Unix sockets."""
