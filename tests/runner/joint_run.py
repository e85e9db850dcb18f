"""One run in several processes: python joint_run.py FOLDER EPOCHS SHARDED RESUME [RANK [overlap]].

In the process RANK, the third batch of the second epoch sends SIGTERM; -1 is none. Each process writes
result_RANK.json.
"""

import json
import os
import signal
import sys
from pathlib import Path

import gymnasium

from amago import Experiment
from amago.agent import Agent
from amago.cli_utils import use_config
from amago.distributed import fsdp
from amago.envs import AMAGOEnv
from amago.experiment import Callback
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder


class Stop(Callback):
    """Sends SIGTERM to the process of a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.batches = 0

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self.batches += experiment.epoch == 1
        if self.batches == 3 and experiment.processes.rank == self.rank:
            os.kill(os.getpid(), signal.SIGTERM)


def make_env() -> AMAGOEnv:
    return AMAGOEnv(gymnasium.make("CartPole-v1"), env_name="CartPole")


def main(root: Path, epochs: int, sharded: bool, resume: bool, stop: int, overlap: bool) -> None:
    use_config(
        {
            "FFTstepEncoder.d_hidden": 16,
            "FFTstepEncoder.d_output": 8,
            "TformerTrajEncoder.d_model": 8,
            "TformerTrajEncoder.d_ff": 15,
            "TformerTrajEncoder.n_heads": 2,
            "TformerTrajEncoder.n_layers": 2,
            "Actor.d_hidden": 8,
            "NCritics.d_hidden": 8,
        }
    )
    experiment = Experiment(
        run_name="run",
        ckpt_base_dir=root,
        dset_root=root,
        dset_name="buffer",
        max_seq_len=16,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder,
        agent_type=Agent,
        val_timesteps_per_epoch=50,
        make_train_env=make_env,
        make_val_env=make_env,
        parallel_actors=4,
        env_mode="sync",
        epochs=epochs,
        train_timesteps_per_epoch=50,
        train_batches_per_epoch=5,
        batches_per_update=2,
        val_interval=2,
        ckpt_interval=2,
        batch_size=4,
        dloader_workers=0,
        seed=1,
        log_interval=2,
        learning_rate=0.01,
        lr_warmup_steps=10,
        resume=resume,
        verbose=False,
        fsdp=sharded,
        overlap_collection=overlap,
        callbacks=[Stop(stop)],
    )
    experiment.start()
    experiment.learn()
    weights = fsdp.unsharded(dict(experiment.policy.state_dict()))
    result = {
        "weights": {name: float(x.double().sum()) for name, x in weights.items()},
        "updates": experiment.counters.gradient_steps,
        "env_steps": experiment.counters.env_steps,
    }
    (root / f"result_{experiment.processes.rank}.json").write_text(json.dumps(result))
    experiment.close()


if __name__ == "__main__":
    folder, length, is_sharded, is_resumed, rank, *overlaps = [*sys.argv[1:], "-1"][:6]
    main(
        Path(folder),
        int(length),
        is_sharded == "True",
        is_resumed == "True",
        int(rank),
        overlaps == ["overlap"],
    )
