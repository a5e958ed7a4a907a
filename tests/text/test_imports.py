"""`nextfit.text` is cheap to import: what is heavy comes with the first use."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, nextfit.text, nextfit.models; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "nextfit.text.tokenizer" in loaded
    assert not loaded & {"torch", "numpy", "tokenizers", "jinja2", "transformers", "gguf", "nextfit.engine"}
