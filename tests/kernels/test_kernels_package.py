"""The package as a whole: its README."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "amago-kernels" / "README.md"


def test_the_examples_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 7
    exec(compile("\n".join(blocks), str(README), "exec"), {})
