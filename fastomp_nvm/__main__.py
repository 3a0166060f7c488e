"""``python -m fastomp_nvm`` is ``fastomp``."""

from __future__ import annotations

import sys

from fastomp_nvm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
