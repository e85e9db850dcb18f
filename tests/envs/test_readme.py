"""The examples of the package's README run as they stand, one after the other, in a fresh interpreter."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "amago-envs" / "README.md"


def test_the_examples_run_and_need_no_torch():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 7
    program = "\n".join([*blocks, "import sys", "assert 'torch' not in sys.modules"])
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "CartPole_00000000_1700000000.npz (5, 1)" in finished.stdout
