"""The ``linkern`` command, as ``python -m linkern``."""

from linkern.cli import main

if __name__ == "__main__":
    main()
