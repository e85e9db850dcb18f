"""Networks are built from shapes alone, where no environment library, tracker or launcher is installed."""

import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "amago-nets" / "README.md"

WITHOUT_THE_OTHERS = """
import sys

BLOCKED = {"gymnasium", "gym", "accelerate", "wandb", "safetensors", "matplotlib"}
SIBLINGS = ("amago.envs", "amago.hindsight", "amago.agent", "amago.experiment", "amago.loading")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED or name.startswith(SIBLINGS):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
import torch
"""

EVERY_PAIR = """
from amago.nets.specs import ArraySpec
from amago.nets.traj_encoders import get_traj_encoder_cls, list_registered_traj_encoders
from amago.nets.tstep_encoders import get_tstep_encoder_cls, list_registered_tstep_encoders, tstep_encoder_for

words = ArraySpec((6,), "int64", low=0, high=50)
SPACES = {
    "ff": {"observation": (4,)},
    "cnn": {"observation": (40, 40, 3)},
    "multimodal": {"image": (12, 12, 3), "vector": (4,), "text": words},
}
B, L, A = 2, 5, 3
rl2s, time_idxs = torch.randn(B, L, 1 + A), torch.arange(L).view(1, L, 1).expand(B, L, 1)
assert list_registered_tstep_encoders() == sorted(SPACES)
for tstep_name in list_registered_tstep_encoders():
    space = SPACES[tstep_name]
    assert tstep_encoder_for(space) == tstep_name
    obs = {key: torch.ones(B, L, *(words.shape if key == "text" else space[key])).long() for key in space}
    tstep_encoder = get_tstep_encoder_cls(tstep_name)(obs_space=space, rl2_space=(1 + A,))
    embedded = tstep_encoder(obs=obs, rl2s=rl2s)
    assert embedded.shape == (B, L, tstep_encoder.emb_dim)
    for traj_name in list_registered_traj_encoders():
        traj_encoder = get_traj_encoder_cls(traj_name)(tstep_dim=tstep_encoder.emb_dim, max_seq_len=L)
        states, _ = traj_encoder(embedded, time_idxs=time_idxs)
        assert states.shape == (B, L, traj_encoder.emb_dim)
        assert states.isfinite().all()
        print(tstep_name, traj_name)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_registered_pair_of_encoders_is_built_from_shapes_and_runs():
    done = python(WITHOUT_THE_OTHERS + EVERY_PAIR)
    assert done.returncode == 0, done.stderr
    traj_encoders = ["ff", "identity", "mamba", "rnn", "transformer"]
    tstep_encoders = ["cnn", "ff", "multimodal"]
    assert done.stdout.split("\n")[:-1] == [f"{a} {b}" for a in tstep_encoders for b in traj_encoders]


def test_the_readme_runs_without_them_too():
    read = "code = ''.join(part.split('```')[0] for part in open(sys.argv[1]).read().split('```python\\n')[1:])\n"
    done = python(WITHOUT_THE_OTHERS + read + "exec(code, {})", str(README))
    assert done.returncode == 0, done.stderr
