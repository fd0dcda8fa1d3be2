"""Provider ``kubernetes``: servers in Pods of a Kubernetes cluster."""
