"""The provider ``kubernetes``: runs servers in Pods of a Kubernetes cluster."""
