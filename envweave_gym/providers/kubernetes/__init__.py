"""Servers in Pods of a Kubernetes cluster."""
