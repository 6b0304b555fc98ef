"""The commands ``verify``, ``list``, ``fingerprint``, ``check-bundle``, ``bench``."""

import click

from linkern._version import __version__
from linkern.cli.benches import bench
from linkern.cli.bundles import check_bundle
from linkern.cli.explaining import explain_
from linkern.cli.fingerprints import fingerprint
from linkern.cli.listing import list_
from linkern.cli.verdicts import verify

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="linkern")
def main() -> None:
    """Use the numerical reference and the referee for linear attention."""


for _command in (verify, list_, explain_, fingerprint, check_bundle, bench):
    main.add_command(_command)
