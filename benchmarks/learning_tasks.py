"""The tasks of `benchmarks.learning`: arguments of `amago-run train`, with memory and without.

A policy without memory has a feed-forward network in place of the sequence model. The previous action and reward
are one step of memory, so they are hidden from it (`hide_rl2s`), except in fully observable tasks. All other
settings, budget included, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HIDDEN = "--traj-encoder ff --set FFTstepEncoder.hide_rl2s=True"
RECURRENT = "--traj-encoder transformer --max-seq-len 32"
NEIGHBOURS = ("ppo-lstm", "recurrent-ppo")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task.

    Attributes:
        title: heading of its figure and its row in the table.
        arguments: arguments of `amago-run train` that both policies share.
        memory, none: further arguments of each.
        best: the largest possible return, or the return that counts as solved; as text.
        random_episodes: episodes of the random policy.
        neighbours: neighbours that run on it.
    """

    title: str
    arguments: str
    memory: str = ""
    none: str = HIDDEN
    best: str = ""
    random_episodes: int = 100
    neighbours: tuple[str, ...] = field(default=NEIGHBOURS)

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies that run on it."""
        return ("memory", "none", *self.neighbours)

    def arguments_of(self, policy: str) -> str:
        """Arguments of `amago-run train` for "memory" or "none"; of a neighbour, those of the environment."""
        if policy in self.neighbours:
            words = self.arguments.split()
            pairs = [f"--env-arg {words[i + 1]}" for i, word in enumerate(words) if word == "--env-arg"]
            return " ".join([words[0], *pairs])
        return f"{self.arguments} {self.memory if policy == 'memory' else self.none}".strip()


def _tmaze(length: int, batches_per_epoch: int) -> Task:
    steps = length + 1
    return Task(
        title=f"T-Maze, corridor of {length}",
        arguments=(
            f"benchmarks.learning_envs:TMazeAltPassive --env-arg corridor_length={length} "
            f"--env-arg penalty={-1 / length} --gin benchmarks/tmaze.gin --exploration corridor "
            f"--max-seq-len {steps} --memory-size 64 --memory-layers 1 --batch-size 24 --epochs 80 "
            f"--timesteps-per-epoch {2 * steps} --batches-per-epoch {batches_per_epoch}"
        ),
        memory="--traj-encoder transformer",
        best="1",
    )


TASKS = {
    "quickstart": Task(title="MetaFrozenLake 3 x 3, five attempts", arguments="MetaFrozenLake", best="5"),
    "frozen-lake-hard": Task(
        title="MetaFrozenLake 3 x 3, hard mode",
        arguments="MetaFrozenLake --env-arg hard_mode=True --eval-episodes 300",
        best="5",
    ),
    "room-key-door": Task(
        title="RoomKeyDoor 5 x 5, rollouts of 150 steps",
        arguments=(
            "RoomKeyDoor --env-arg size=5 --env-arg max_episode_steps=30 --env-arg meta_rollout_horizon=150 "
            "--max-seq-len 150 --timesteps-per-epoch 150 --batches-per-epoch 40"
        ),
    ),
    "tmaze-50": _tmaze(50, 50),
    "tmaze-100": _tmaze(100, 50),
    "tmaze-200": _tmaze(200, 100),
    "tmaze-400": _tmaze(400, 200),
    "popgym-repeat-previous": Task(
        title="POPGym RepeatPreviousEasy", arguments="popgym-RepeatPreviousEasy-v0", best="1"
    ),
    "popgym-autoencode": Task(title="POPGym AutoencodeEasy", arguments="popgym-AutoencodeEasy-v0", best="1"),
    "popgym-count-recall": Task(
        title="POPGym CountRecallEasy", arguments="popgym-CountRecallEasy-v0", best="1"
    ),
    "cartpole-no-velocity": Task(
        title="CartPole-v1 without velocities",
        arguments="benchmarks.learning_envs:CartPoleWithoutVelocities",
        memory=RECURRENT,
        best="500",
    ),
    "popgym-position-cartpole": Task(
        title="POPGym PositionOnlyCartPoleEasy",
        arguments=(
            "popgym-PositionOnlyCartPoleEasy-v0 --kind vectors --set Agent.reward_multiplier=100.0"  # returns <= 1
        ),
        memory=RECURRENT,
        best="1",
    ),
    "cartpole": Task(title="CartPole-v1", arguments="CartPole-v1", memory=RECURRENT, none="", best="500"),
    "pendulum": Task(
        title="Pendulum-v1", arguments="Pendulum-v1", memory=RECURRENT, none="", best="about -150"
    ),
    "lunar-lander": Task(
        title="LunarLander-v3", arguments="LunarLander-v3", memory=RECURRENT, none="", best="200 or more"
    ),
    "half-cheetah-velocity": Task(
        title="HalfCheetah at a hidden velocity",
        arguments=(
            "HalfCheetahMetaVelocity --actors 8 --timesteps-per-epoch 125 --set Agent.gamma=0.99 "
            "--set Agent.tau=0.01 --set Experiment.traj_save_len=100"
        ),
        best="0",
        random_episodes=20,
    ),
    "offline-pendulum": Task(
        title="Pendulum-v1 from recorded data",
        arguments="minari/amago/pendulum-mixed-v0 --epochs 20",
        memory="--traj-encoder transformer",
        none="",
        best="about -150",
        neighbours=(),
    ),
    "babyai-go-to-red-ball": Task(
        title="BabyAI GoToRedBallNoDists",
        arguments="BabyAI-GoToRedBallNoDists-v0",
        none="--traj-encoder ff --set MultiModalTstepEncoder.hide_rl2s=True",
        best="1",
        neighbours=(),
    ),
    "atari-pong": Task(
        title="Pong, an action for twelve frames",
        arguments="ALE/Pong-v5 --env-arg frame_skip=12",
        none="--traj-encoder ff --set CNNTstepEncoder.hide_rl2s=True",
        best="21",
        random_episodes=20,
        neighbours=(),
    ),
}
