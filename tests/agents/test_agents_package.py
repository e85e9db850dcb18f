"""The package as a whole: its README, and what it does without."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "amago-agents" / "README.md"


def test_the_examples_of_the_readme_run_without_an_environment_library():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    without = (
        "import sys\nsys.modules.update(dict.fromkeys(['gymnasium', 'accelerate', 'wandb', 'safetensors']))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", "\n".join([without, *blocks])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "'Critic Loss'" in finished.stdout
