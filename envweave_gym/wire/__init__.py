"""What travels between a client and a server: values, spaces and messages as msgpack, and nothing pickled."""
