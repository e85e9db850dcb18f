"""Two processes that train together: equal weights and statistics, one schedule, one set of files."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.source_only

SCRIPT = '''
import dataclasses, json, hashlib, sys, time
from pathlib import Path
import gymnasium
from amago import Experiment
from amago.agent import Agent
from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.loading import DiskTrajDataset
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

root, epochs, resume = Path(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3
use_config({
    "FFTstepEncoder.d_hidden": 16, "FFTstepEncoder.d_output": 8, "GRUTrajEncoder.d_hidden": 8,
    "GRUTrajEncoder.d_output": 8, "Actor.d_hidden": 8, "NCritics.d_hidden": 8,
})
class SlowlyRestored(DiskTrajDataset):
    """Leaves the second process time to collect while the main process restores the files of the checkpoint."""

    def load_state_dict(self, *args, **kwargs):
        time.sleep(1.0 if self.has_edit_rights else 0.0)
        super().load_state_dict(*args, **kwargs)

make_env = lambda: AMAGOEnv(gymnasium.make("CartPole-v1"), env_name="CartPole")
experiment = Experiment(
    run_name="run", ckpt_base_dir=root, max_seq_len=16,
    dataset=SlowlyRestored(dset_root=root, dset_name="buffer", dset_max_size=1000),
    tstep_encoder_type=FFTstepEncoder, traj_encoder_type=GRUTrajEncoder, agent_type=Agent,
    val_timesteps_per_epoch=50, make_train_env=make_env, make_val_env=make_env, parallel_actors=4,
    env_mode="sync", epochs=epochs, train_timesteps_per_epoch=50, train_batches_per_epoch=6,
    batches_per_update=2, val_interval=2, ckpt_interval=2, batch_size=4, dloader_workers=0, seed=1,
    log_interval=2, learning_rate=0.01, lr_warmup_steps=100, resume=resume, verbose=False,
)
experiment.start()
experiment.learn()
state = b"".join(tensor.numpy().tobytes() for tensor in experiment.policy.state_dict().values())
result = {
    "weights": hashlib.sha1(state).hexdigest(),
    "rate": experiment.optimizer.param_groups[0]["lr"],
    **dataclasses.asdict(experiment.counters),
    "wall_seconds": 0.0,
}
(root / f"result_{experiment.processes.rank}.json").write_text(json.dumps(result))
experiment.close()
'''


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def run_in_two_processes(folder: Path, epochs: int, *, resume: bool = False) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        f"--master_port={free_port()}",
    ]
    arguments = [str(script), str(folder), str(epochs), *(["resume"] if resume else [])]
    # Without ACCELERATE_USE_CPU: where there is no GPU the processes meet on the CPU.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environment = {**kept, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_two_processes_have_equal_weights_and_shared_counters(tmp_path: Path) -> None:
    first, second = run_in_two_processes(tmp_path, epochs=3)
    assert first == second
    assert (first["env_steps"], first["gradient_steps"]) == (2 * 4 * 50 * 3, 9)
    # The rate of the next update, number 9 in a warm-up over 100: the schedule does not advance once per process.
    assert first["rate"] == pytest.approx(0.01 * 9 / 100)
    states = tmp_path / "run" / "ckpts" / "training_states"
    assert sorted(path.name for path in states.iterdir()) == ["run_epoch_0", "run_epoch_2"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if line["section"] == "dataset"]) == 3


@pytest.mark.slow
def test_two_processes_resume_exactly(tmp_path: Path) -> None:
    unbroken = run_in_two_processes(tmp_path / "a", epochs=5)
    # The checkpoint of the last epoch is that of an interval too, so a longer run has it at the same place.
    run_in_two_processes(tmp_path / "b", epochs=3)
    assert run_in_two_processes(tmp_path / "b", epochs=5, resume=True) == unbroken
