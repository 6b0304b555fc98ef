"""HEADING"""

import shlex
import subprocess
import sys

# <constants>
AGAIN = "linkern verify TARGET"
# </constants>

if __name__ == "__main__":
    sys.exit(subprocess.run(shlex.split(AGAIN), check=False).returncode)
