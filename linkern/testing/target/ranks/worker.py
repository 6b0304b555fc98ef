"""Process of one rank: join the group of all ranks, load the target, answer requests.

The environment is that of `torchrun`: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR.
"""

import faulthandler
import inspect
import os
import signal
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.target.invoke import Caller
from linkern.testing.target.loading import resolve
from linkern.testing.target.protocol import TargetConfig
from linkern.testing.target.ranks import counting
from linkern.testing.target.ranks.runner import RankRunner
from linkern.testing.target.signatures import GROUP_NAMES, named_in
from linkern.testing.target.worker import (
    INTERPRETER,
    Opened,
    describe,
    open_target,
    serve,
    streams,
)

__all__ = ["main", "open_on_rank"]

# Seconds after which a collective gives up; the referee ends the process before.
PATIENCE = 600


def open_on_rank(config: TargetConfig) -> tuple[Opened, Caller]:
    """Return the interface of a target, and the function that calls it on this rank.

    The process joins the group of all ranks first, and leaves one that it was in.
    """
    if find_spec("torch") is None:
        msg = (
            "`ranks` needs torch.distributed, and torch is not installed; run "
            "`python -m pip install 'linkern[torch]'`."
        )
        raise UsageError(msg)
    if config.interpret:  # before anything imports Triton
        import_module(INTERPRETER).start()
    collectives = import_module("torch.distributed")
    if not collectives.is_available():
        msg = "`ranks` needs torch.distributed, which this build of torch lacks."
        raise UsageError(msg)
    counting.install()  # before anything imports a collective by its name
    if collectives.is_initialized():
        collectives.destroy_process_group()
    backend, config = _backend(config)
    collectives.init_process_group(
        backend,
        init_method=f"file://{config.rendezvous}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=PATIENCE),
    )
    group = collectives.group.WORLD
    target = _instance(resolve(config.target), config.target, group)
    runner = partial(RankRunner, group=group)
    opened, caller = open_target(config, target, runner)
    if opened.inferred.name == "jax":
        msg = (
            f'"{config.target}" is for arrays of JAX ({opened.inferred.reason}); name '
            "the framework, `--framework jax`."
        )
        raise UsageError(msg)
    return opened, caller


def _instance(target: Any, name: str, group: Any) -> Any:
    """Return a target; of a class an instance, made with the group if it takes one."""
    if not inspect.isclass(target):
        return target
    try:
        taken = named_in(GROUP_NAMES, dict(inspect.signature(target).parameters))
        return target(**({taken: group} if taken else {}))
    except Exception as error:
        msg = (
            f'"{name}" must be a class that can be made of a `group` alone, or of '
            f"nothing: {describe(error)}."
        )
        raise UsageError(msg) from None


def _backend(config: TargetConfig) -> tuple[str, TargetConfig]:
    """Return the backend of the group, and the config with the device of this rank."""
    if config.device == "cpu":
        return "gloo", config
    cuda = import_module("torch").cuda
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    count = cuda.device_count()
    if count < ranks:
        msg = (
            f"`ranks` needs {ranks} CUDA devices, a rank each, and there are {count}; "
            "leave out --device, or ask for fewer ranks."
        )
        raise UsageError(msg)
    cuda.set_device(rank)
    return "nccl", replace(config, device=f"cuda:{rank}")


def main() -> None:
    """Answer the requests on standard input; on SIGUSR1, write where this rank is."""
    requests, replies = streams()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    serve(requests, replies, open_on_rank)
