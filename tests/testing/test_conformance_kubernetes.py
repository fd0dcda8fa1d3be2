"""IDs of every kind keep the rules of the conformance kit in Pods, too.

The API server is the stand-in of ``kubernetes_api.py``, whose Pods are servers in processes of this machine,
or with ``make cluster-test`` a real one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conforming import FEW, WHOLE, elsewhere, every_check, kept_open, run
from kubernetes_api import SERVER, KubernetesApi
from kubernetes_clusters import here
from kubernetes_real import real_cluster
from servers import until

import envweave_gym as ew
from envweave_gym.testing import Subject
from envweave_gym.testing.runs import Check

__all__ = ["here"]
pytestmark = pytest.mark.slow
COUNTER = "envweave/Counter-v0"
POD = {"backend": "kubernetes", "image": SERVER}
"""All in one image, so that one Pod serves all checks."""
WITH_DATA = ("GSM8K", "SWEBench")
"""Their data sets are in other images, which a real cluster takes seriously."""
SUBJECTS = elsewhere(
    [one for one in FEW if real_cluster() is None or not any(name in one for name in WITH_DATA)],
    "fork",
    **POD,
)


@pytest.fixture(scope="module", autouse=True)
def pod(here: KubernetesApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Pod serves all checks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path_factory.mktemp("kube") / "config")))
        with kept_open(SUBJECTS):
            yield


@every_check(SUBJECTS, WHOLE)
def test_registered_id_conforms_in_a_pod(subject: Subject, check: Check) -> None:
    run(check, subject)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_pods_that_rows_in_processes_have_started_end_with_their_vector(here: KubernetesApi) -> None:
    before = here.names("pods")
    rows = ew.make(COUNTER, num_envs=2, vectorization_mode="async", **POD)
    assert len(here.names("pods") - before) == 2
    rows.close()
    until(lambda: here.names("pods") <= before)
