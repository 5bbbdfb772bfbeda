"""The training recipe of ``examples/train_tiny`` as an importable package."""

from __future__ import annotations

import sys
from pathlib import Path

_EXAMPLES = str(Path(__file__).parents[2] / "examples")
if _EXAMPLES not in sys.path:
    sys.path.append(_EXAMPLES)
