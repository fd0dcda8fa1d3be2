raise RuntimeError("no\nluck")
