"""Keeps torch out of a gateway process, although it may be installed beside it."""

from __future__ import annotations

import os
import sys


def keep_torch_out() -> None:
    """Makes torch look absent from now on; call it first thing in the process.

    transformers imports torch wherever it finds it, which costs a gateway seconds at its start and
    200 MB for nothing: tokenizers do without. For the process as a whole, hence never in a library
    or a test.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type] # None: not to be found
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # nor a notice of it
