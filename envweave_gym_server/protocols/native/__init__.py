"""Our own protocol: msgpack frames over WebSockets, Unix sockets, plain HTTP or Ray calls."""
