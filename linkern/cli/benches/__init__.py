"""``linkern bench``: measure on this machine, beside whatever else is installed."""

from linkern.cli.benches.command import bench
from linkern.cli.benches.generation import generation

__all__ = ["bench"]

bench.add_command(generation)
