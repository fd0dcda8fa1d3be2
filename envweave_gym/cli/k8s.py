"""``envweave k8s manifest``: prints Kubernetes manifests that serve an environment."""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Callable
from typing import Any

from envweave_gym.cli.info import card_named
from envweave_gym.cli.tables import print_json
from envweave_gym.containers.engine import check_image
from envweave_gym.core.faults import InvalidArgument, need
from envweave_gym.providers.kubernetes import manifests
from envweave_gym.providers.kubernetes.manifests import Manifest, PodTemplate, check_name, check_service_name
from envweave_gym.remote.address import TOKEN

_MAX_PODS = 10_000
_TEMPLATE = ("memory", "cpus", "lifetime", "pull_policy", "pull_secret")
_EPILOG = (
    "Apply it with: envweave k8s manifest ID | kubectl apply -f -. The token is that of the environment "
    "variable ENVWEAVE_TOKEN, or else made up; it is in the Secret and nowhere else. Applying a Deployment "
    "with another token replaces its Pods; a single Pod keeps its token, so delete it and its Secret before."
)


def add_options(parser: argparse.ArgumentParser, add: Callable[..., Any]) -> None:
    """Add the subcommands to ``parser``; ``add`` creates a subcommand."""
    commands = parser.add_subparsers(metavar="manifest", required=True)
    about = "Print the documents that make a cluster serve an environment, as YAML."
    parser = add(commands, "manifest", about)
    parser.epilog = _EPILOG
    parser.add_argument("id", metavar="ID", help="the environment")
    option = parser.add_argument
    option(
        "--image", help="the image whose server has it, where the cluster finds it; IDs of ours know theirs"
    )
    option(
        "--replicas", metavar="N", type=int, help="a Deployment of N Pods and a Service, instead of one Pod"
    )
    option("--name", help="the name of all objects (derived from the ID)")
    option("--namespace", help="the namespace it is in (that of kubectl)")
    option("--memory", metavar="SIZE", help="memory limit of a Pod (2g)")
    option("--cpus", metavar="N", type=float, help="CPU limit of a Pod, in cores")
    option("--lifetime", metavar="SECONDS", type=float, help="activeDeadlineSeconds of a single Pod (86400)")
    option("--pull-policy", metavar="WHEN", help="IfNotPresent, Always or Never")
    option("--pull-secret", metavar="NAME", help="the Secret with the credentials of the image registry")


def run(args: argparse.Namespace) -> int:
    """Print the manifests, as YAML or JSON."""
    found = documents(args)
    if args.json:
        print_json({"apiVersion": "v1", "kind": "List", "items": found})
        return 0
    yaml: Any = need("yaml", "kubernetes", "envweave k8s manifest (without --json)")
    print(yaml.safe_dump_all(found, sort_keys=False), end="")
    return 0


def documents(args: argparse.Namespace) -> list[Manifest]:
    """Return the manifests that these arguments ask for."""
    card = card_named(args.id)
    image = args.image or (card and card.image)
    if not image:
        raise InvalidArgument(
            f"{args.id} is in no image that is known; name the one that has it with --image"
        )
    check_image(image)
    if args.replicas is not None and not 1 <= args.replicas <= _MAX_PODS:
        raise InvalidArgument(f"--replicas {args.replicas} is no number of Pods from 1 to {_MAX_PODS}")
    check = check_name if args.replicas is None else check_service_name
    name = check("--name", _name_of(args.id) if args.name is None else args.name)
    given = {key: getattr(args, key) for key in _TEMPLATE if getattr(args, key) is not None}
    template = PodTemplate(**given)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    # A Pod never takes another token: an immutable Secret refuses one, instead of locking everybody out.
    found = [manifests.secret(name, token, immutable=args.replicas is None)]
    if args.replicas is None:
        found.append(manifests.pod(name, image, template, args=[args.id]))
    else:
        found.append(manifests.deployment(name, image, template, args.replicas, token=token, args=[args.id]))
        found.append(manifests.service(name))
    if args.namespace is not None:
        for one in found:
            one["metadata"]["namespace"] = check_name("--namespace", args.namespace)
    return found


def _name_of(env_id: str) -> str:
    """Return a legal object name for an ID, such as ``envweave-counter-v0``."""
    name = re.sub(r"[^a-z0-9]+", "-", env_id.lower()).strip("-")
    return (f"env-{name}" if name[:1].isdigit() else name)[:60].strip("-")
