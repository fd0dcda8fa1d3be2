"""Provider ``ray``: servers in Ray actors, transports to them, and a vector whose sub-batches step independently."""
