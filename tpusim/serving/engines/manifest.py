"""A Kubernetes manifest that runs a serving command on a slice of Google Kubernetes Engine.

One host is a Deployment, several are a JobSet whose jobs are the replicas. Facts: the labels
`cloud.google.com/gke-tpu-accelerator` and `gke-tpu-topology`, the resource `google.com/tpu`, the
names of accelerators and the chips of a VM (one, or four) are those of AI-Hypercomputer/xpk
@02b0c092, src/xpk/core/system_characteristics.py; the toleration is that of "Plan TPUs in GKE"
(cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus).
"""

from collections.abc import Mapping
from typing import Any

import yaml

from tpusim.base.close_names import joined
from tpusim.base.errors import PlanError
from tpusim.hardware import Slice
from tpusim.serving.engines.command import ServingCommand, programs

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "7x": "tpu7x",
}
"""Values of `gke-tpu-accelerator` by generation."""

HOST_CHIPS = 4
"""Chips of a VM, unless the slice is one chip, or the VM of a server."""

SERVER_CHIPS = {"v5e": 8, "v6e": 8}
"""Chips of the largest slice that is one VM (ct5lp-hightpu-8t, ct6e-standard-8t). Source: Cloud TPU
documentation, v5e and v6e."""

IMAGES = {
    "vllm-serve": "vllm/vllm-tpu:nightly",
    "sglang-jax": "us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:jax0.8.1-rev1",
}
"""Images by program. Sources: vllm-project/tpu-inference, docs; sgl-project/sglang-jax, docs: its
server is installed in the image of JAX."""

PORTS = {"vllm-serve": 8000, "sglang-jax": 30000}
"""Ports of the servers: vLLM's default, and SGLang-JAX's (srt/server_args.py)."""

COORDINATOR_PORT = 5000

JOB = "replica"
"""The name of the jobs of a JobSet. Its pods are called by set, job, index and host."""


def kubernetes_manifest(
    command: ServingCommand, pod: Slice, *, name: str = "server", replicas: int = 1, image: str = ""
) -> str:
    """Return a manifest, YAML, that runs a command on replicas of a slice.

    command: of `vllm serve` or SGLang-JAX.
    pod: the slice of a replica.
    name: of the objects, a DNS label.
    replicas: servers, each on a slice of its own.
    image: of the container; empty for the engine's.

    Raise PlanError for a command that starts no server, and for chips that the engine has not.
    """
    if command.program not in PORTS:
        raise PlanError(f"{command.program} starts no server; write a command of one")
    if pod.chip.name not in ACCELERATORS:
        raise PlanError(
            f"Google Kubernetes Engine has no {pod.chip.name} slices to serve from; write "
            f"{joined(ACCELERATORS, 'or')}"
        )
    whole = pod.chips <= SERVER_CHIPS.get(pod.chip.name, HOST_CHIPS)
    hosts = 1 if whole else pod.chips // HOST_CHIPS
    container = _container(command, pod, name, image or IMAGES[command.program], hosts)
    make = _deployment if hosts == 1 else _job_set
    objects = [make(name, replicas, hosts, _pod(pod, container)), _service(command, name, hosts)]
    started = " ".join(programs()[command.program].words)
    needs = f"# The image has to have what starts `{started}`.\n"
    text: str = yaml.safe_dump_all(objects, sort_keys=False, width=100)
    return needs + text


def _container(
    command: ServingCommand, pod: Slice, name: str, image: str, hosts: int
) -> dict[str, Any]:
    chips = {"google.com/tpu": pod.chips // hosts}
    words = [_literal(word) for word in command.words()]
    port = PORTS[command.program]
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "command": words,
        "ports": [{"containerPort": port}],
        "resources": {"requests": chips, "limits": dict(chips)},
        "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 10},
    }
    if hosts > 1:
        _over_hosts(container, command, name, hosts)
    return container


def _literal(word: str) -> str:
    """Return a word that Kubernetes leaves as it is: of `$(NAME)` it would write the variable."""
    return word.replace("$(", "$$(")


def _over_hosts(container: dict[str, Any], command: ServingCommand, name: str, hosts: int) -> None:
    """Let a container run one of several hosts of a server."""
    del container["readinessProbe"]
    fields = {
        "JOB_INDEX": "metadata.labels['jobset.sigs.k8s.io/job-index']",
        "NODE_RANK": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    }
    container["env"] = [
        {"name": each, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for each, path in fields.items()
    ]
    first = f"{name}-{JOB}-$(JOB_INDEX)-0.{name}"
    if command.program == "sglang-jax":
        container["command"] += [
            *("--nnodes", str(hosts), "--node-rank", "$(NODE_RANK)"),
            *("--dist-init-addr", f"{first}:{COORDINATOR_PORT}"),
        ]
        return
    container["env"].append({"name": "TPU_MULTIHOST_BACKEND", "value": "ray"})
    head = f"ray start --head --port={COORDINATOR_PORT} && exec {_literal(str(command))}"
    others = f"exec ray start --address={first}:{COORDINATOR_PORT} --block"
    script = f'if [ "$(NODE_RANK)" = 0 ]; then {head}; else {others}; fi'
    container["command"] = ["sh", "-c", script]


def _pod(pod: Slice, container: Mapping[str, Any]) -> dict[str, Any]:
    topology = "x".join(map(str, pod.topology.dims))
    return {
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[pod.chip.name],
            "cloud.google.com/gke-tpu-topology": topology,
        },
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [dict(container)],
    }


def _deployment(name: str, replicas: int, _hosts: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": dict(labels)}, "spec": dict(spec)},
        },
    }


def _job_set(name: str, replicas: int, hosts: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    pods = {"metadata": {"labels": {"app": name}}, "spec": {**spec, "restartPolicy": "Never"}}
    job = {"parallelism": hosts, "completions": hosts, "backoffLimit": 0, "template": pods}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {
                "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
            },
        },
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [{"name": JOB, "replicas": replicas, "template": {"spec": job}}],
        },
    }


def _service(command: ServingCommand, name: str, hosts: int) -> dict[str, Any]:
    """Return the service of the server; of several hosts, the first answers."""
    selector = {"app": name}
    if hosts > 1:
        selector["batch.kubernetes.io/job-completion-index"] = "0"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-http"},
        "spec": {"selector": selector, "ports": [{"port": PORTS[command.program]}]},
    }
