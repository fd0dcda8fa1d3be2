"""Typed clients and one-call constructors, under the names that OpenEnv, EnvTorch and our older documents use."""
