"""Servers in Pods of a Kubernetes cluster."""

from envweave_gym.providers.kubernetes.pod import kubernetes_start as kubernetes_start
from envweave_gym.providers.kubernetes.pod import kubernetes_urls as kubernetes_urls
