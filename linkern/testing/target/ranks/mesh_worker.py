"""Process of a target of JAX that runs on several ranks: as many devices of the CPU."""

import os

from linkern.testing.target.invoke import Caller
from linkern.testing.target.protocol import TargetConfig
from linkern.testing.target.ranks.mesh import MeshRunner
from linkern.testing.target.worker import Opened, open_target, serve, streams

__all__ = ["main", "open_on_mesh"]

FLAG = "--xla_force_host_platform_device_count"


def open_on_mesh(config: TargetConfig) -> tuple[Opened, Caller]:
    """Return the interface of a target, and the function that calls it on all ranks.

    JAX makes its devices when one is first used, by the variable XLA_FLAGS.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={max(config.ranks)}".strip()
    return open_target(config, runner=MeshRunner)


def main() -> None:
    """Answer the requests on standard input."""
    serve(*streams(), open_on_mesh)
