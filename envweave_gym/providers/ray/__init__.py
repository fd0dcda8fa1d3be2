"""Ray: servers in actors, the transports to them, and vectors whose sub-batches step at their own pace."""
