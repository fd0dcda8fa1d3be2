"""Network connections with deadlines: sockets, HTTP, WebSockets, framed Unix sockets and shared memory."""
