"""Where servers come from: each provider starts one and tells its address."""
