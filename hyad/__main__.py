"""``python -m hyad``: the command ``hyad``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
