"""The catalog: every builtin environment, how it is made, and what its default settings depend on.

`find_entry` finds an environment by its name ("POPGym") or an id of its package ("popgym-RepeatPreviousEasy-v0").
The catalog imports neither the environments' modules nor their packages; `CatalogEntry.load` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gin

from amago.envs.builtin.optional import ALCHEMY_INSTALL, PROCGEN_INSTALL, optional_import

Kind = Literal["vectors", "memory", "pixels", "tokens", "offline"]
KINDS: dict[Kind, str] = {
    "vectors": "the current observation suffices",
    "memory": "vectors; earlier steps or attempts must be remembered",
    "pixels": "images of a screen or a camera",
    "tokens": "small grids (ids, flags, one-hot cells or numbers), and texts",
    "offline": "a fixed dataset; the environment is only for evaluation",
}


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One builtin environment, or one family of ids.

    Attributes:
        name: the name on the command line; "PREFIX..." if the ids of a family are the only names.
        module: the module that holds `factory`.
        factory: class or function that makes the environment.
        description: one line.
        kind: the kind of observations, which selects the default settings of training.
        defaults: arguments of the factory.
        wrapper: `AMAGOEnv` subclass in the same module for the environment, which keeps the task's name; None if
            the factory makes an AMAGOEnv, or AMAGOEnv itself fits.
        extra: extra of amago-envs that installs the packages; None if none are needed, or `install` tells.
        packages: modules that must be importable, in addition to those of amago-envs.
        install: the command that installs the packages, if no extra does.
        tested_with: package and version that the environment was tested with.
        episode_steps: steps of the longest episode with the default arguments; None if the id decides or there is
            no limit.
        steps_of: reads that number from an environment, unwrapped or as an AMAGOEnv.
        context: default context length in timesteps; None decides by `kind` and the length of an episode.
        reward_multiplier: scale of rewards for training, if that of the kind does not suit them.
        id_prefix: a name with this prefix is an id of the family; "" if there are no ids.
        id_arguments: the factory's arguments for an id.
        example_id: an id of the family.
        memory_ids: ids of the family that are of the kind "memory".
        rows_argument: argument of the factory for the number of environments that step together; "" if it makes
            single ones.
        one_per_process: the package allows one instance per process, so several actors need env_mode="async".
    """

    name: str
    module: str
    factory: str
    description: str
    kind: Kind
    defaults: Mapping[str, Any] = field(default_factory=dict)
    wrapper: str | None = None
    extra: str | None = None
    packages: tuple[str, ...] = ()
    install: str | None = None
    tested_with: str = ""
    episode_steps: int | None = None
    steps_of: Callable[[Any], int | None] | None = None
    context: int | None = None
    reward_multiplier: float | None = None
    id_prefix: str = ""
    id_arguments: Callable[[str], dict[str, Any]] | None = None
    example_id: str = ""
    memory_ids: tuple[str, ...] = ()
    rows_argument: str = ""
    one_per_process: bool = False

    @property
    def has_only_ids(self) -> bool:
        """Whether environments are named by the ids of the family alone."""
        return self.name.endswith("...")

    @property
    def installed(self) -> bool:
        """Whether its packages can be imported; imports none of them."""
        return all(importlib.util.find_spec(package) is not None for package in self.packages)

    @property
    def install_command(self) -> str:
        """The command that installs its packages; "" if it needs none."""
        if self.install is not None:
            return self.install
        return f"pip install 'amago-envs[{self.extra}]'" if self.extra else ""

    def import_packages(self) -> None:
        """Checks that its packages are installed, and imports those of a family of ids, which may register them.

        Others are imported only when an environment is made: procgen's own import needs gym, the environment does
        not.

        Raises:
            ImportError: a package is missing; names the command that installs it.
        """
        for package in self.packages:
            if self.id_prefix or importlib.util.find_spec(package) is None:
                optional_import(package, extra=self.extra, install=self.install)

    def load(self) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """The factory, and the wrapper or None.

        Raises:
            ImportError: a package is missing; names the command that installs it.
        """
        self.import_packages()
        with gin.unlock_config():  # modules may define configurables, also when a run has locked gin
            module = importlib.import_module(self.module)
        wrapper = None if self.wrapper is None else getattr(module, self.wrapper)
        return getattr(module, self.factory), wrapper

    def arguments(self, name: str) -> dict[str, Any]:
        """The factory's default arguments for the entry's own name or for an id of the family."""
        if name == self.name or self.id_arguments is None:
            return dict(self.defaults)
        return {**self.defaults, **self.id_arguments(name)}


def find_entry(name: str) -> CatalogEntry | None:
    """The entry with this name, or the family that an id such as "BabyAI-GoToLocal-v0" belongs to; else None."""
    if name in CATALOG:
        return CATALOG[name]
    families = (entry for entry in CATALOG.values() if entry.id_prefix)
    return next((entry for entry in families if name.startswith(entry.id_prefix)), None)


def _steps_of_kshot(env: Any) -> int | None:
    """Steps of k attempts, and one between each two."""
    limit = None if env.spec is None else env.spec.max_episode_steps
    return None if limit is None else int(env.k * limit + env.k - 1)


# Steps of the longest episode: Easy, Medium, Hard (popgym 1.0.7).
POPGYM_STEPS = {
    "Autoencode": (103, 207, 311),
    "RepeatPrevious": (51, 103, 155),
    "RepeatFirst": (51, 415, 831),
    "CountRecall": (51, 103, 207),
    "PositionOnlyCartPole": (200, 400, 600),
    "VelocityOnlyCartpole": (200, 400, 600),
    "NoisyPositionOnlyCartPole": (200, 200, 200),
    "PositionOnlyPendulum": (200, 150, 100),
    "NoisyPositionOnlyPendulum": (200, 200, 200),
    "MultiarmedBandit": (200, 400, 600),
    "HigherLower": (51, 103, 155),
    "Battleship": (64, 100, 144),
    "Concentration": (104, 208, 104),
    "MineSweeper": (16, 36, 64),
}
# Tasks of gymnax 1.0.1 in which the current observation does not suffice.
_GYMNAX_MEMORY = (
    *(
        "MemoryChain-bsuite",
        "BernoulliBandit-misc",
        "GaussianBandit-misc",
        "MetaMaze-misc",
        "PointRobot-misc",
    ),
)
MULTI_DOMAIN_POPGYM_STEPS = 2 * (831 + 1)


def _steps_of_popgym(env: Any) -> int | None:
    """Steps of the longest episode of a POPGym task, by its id."""
    name = env.env_name.removeprefix("popgym-").rpartition("-")[0]
    for level, suffix in enumerate(("Easy", "Medium", "Hard")):
        if name.endswith(suffix):
            return POPGYM_STEPS.get(name.removesuffix(suffix), (None, None, None))[level]
    return None


def _toys() -> list[CatalogEntry]:
    toy, tmaze = "amago.envs.builtin.toy_gym", "amago.envs.builtin.tmaze"
    corridor: dict[str, Any] = {"corridor_length": 20, "penalty": -0.05}
    return [
        CatalogEntry(
            name="MetaFrozenLake",
            module=toy,
            factory="MetaFrozenLake",
            description="k attempts at crossing a frozen lake with invisible holes",
            kind="memory",
            defaults={"size": 3, "k_episodes": 5},
            episode_steps=45,
            steps_of=_steps_from("k_episodes", "max_episode_steps"),
        ),
        CatalogEntry(
            name="RoomKeyDoor",
            module=toy,
            factory="RoomKeyDoor",
            description="find key and door of a dark room, as often as possible",
            kind="memory",
            episode_steps=500,
            steps_of=_steps_from("meta_rollout_horizon"),
            context=500,
        ),
        CatalogEntry(
            name="TMazeAltPassive",
            module=tmaze,
            factory="TMazeAltPassive",
            description="remember a sign through a corridor",
            kind="memory",
            defaults=corridor,
            episode_steps=21,
            steps_of=_steps_from("episode_length"),
        ),
        CatalogEntry(
            name="TMazeAltActive",
            module=tmaze,
            factory="TMazeAltActive",
            description="fetch a sign first, then remember it",
            kind="memory",
            defaults=corridor,
            episode_steps=23,
            steps_of=_steps_from("episode_length"),
        ),
        CatalogEntry(
            name="TMazeAlt",
            module=tmaze,
            factory="TMazeAlt",
            description="the general maze, with all its settings",
            kind="memory",
            episode_steps=11,
            steps_of=_steps_from("episode_length"),
        ),
        CatalogEntry(
            name="KShot",
            module="amago.envs.builtin.kshot",
            factory="make_kshot",
            description="k attempts at the same task of any Gymnasium id, by default three at CartPole-v1",
            kind="memory",
            defaults={"env": "CartPole-v1", "k": 3},
            episode_steps=1502,
            steps_of=_steps_of_kshot,
        ),
        CatalogEntry(
            name="MazeRunner",
            module="amago.envs.builtin.mazerunner",
            factory="MazeRunnerAMAGOEnv",
            description="visit goals in a random maze, in order",
            kind="memory",
            defaults={"maze_dim": 11, "num_goals": 3, "time_limit": 250, "randomized_action_space": False},
            episode_steps=250,
            steps_of=_steps_from("time_limit"),
        ),
    ]


def _popgym() -> list[CatalogEntry]:
    module, tested = "amago.envs.builtin.popgym_envs", "popgym 1.0.7"
    return [
        CatalogEntry(
            name="POPGym",
            module=module,
            factory="POPGymAMAGO",
            description="the tasks of POPGym: partially observed games and control",
            kind="memory",
            defaults={"env_name": "popgym-RepeatPreviousEasy-v0"},
            extra="popgym",
            packages=("popgym",),
            tested_with=tested,
            episode_steps=51,
            steps_of=_steps_of_popgym,
            id_prefix="popgym-",
            id_arguments=lambda env_id: {"env_name": env_id},
            example_id="popgym-RepeatPreviousEasy-v0",
        ),
        CatalogEntry(
            name="MultiDomainPOPGym",
            module=module,
            factory="MultiDomainPOPGymAMAGO",
            description="27 tasks of POPGym in one, after warm-up attempts",
            kind="memory",
            extra="popgym",
            packages=("popgym",),
            tested_with=tested,
            episode_steps=MULTI_DOMAIN_POPGYM_STEPS,
            context=512,
        ),
    ]


def _grids() -> list[CatalogEntry]:
    babyai = "amago.envs.builtin.babyai"
    return [
        CatalogEntry(
            name="BabyAI",
            module=babyai,
            factory="MultitaskMetaBabyAI",
            description="instructions in grid rooms, k attempts, several tasks",
            kind="tokens",
            defaults={"task_names": ["BabyAI-GoToRedBallNoDists-v0"], "k_episodes": 1},
            extra="babyai",
            packages=("minigrid",),
            tested_with="minigrid 3.2.0",
            episode_steps=64,
            steps_of=_steps_of_babyai,
            id_prefix="BabyAI-",
            id_arguments=lambda env_id: {"task_names": [env_id]},
            example_id="BabyAI-GoToLocal-v0",
        ),
        CatalogEntry(
            name="MiniGrid-...",
            module="gymnasium",
            factory="make",
            description="the tasks of MiniGrid, through Gymnasium",
            kind="tokens",
            extra="babyai",
            packages=("minigrid",),
            tested_with="minigrid 3.2.0",
            steps_of=lambda env: int(env.unwrapped.max_steps),
            id_prefix="MiniGrid-",
            id_arguments=lambda env_id: {"id": env_id},
            example_id="MiniGrid-Empty-5x5-v0",
        ),
        CatalogEntry(
            name="XLandMiniGrid",
            module="amago.envs.builtin.xland_minigrid",
            factory="XLandMinigridVectorizedGym",
            description="k attempts at a task with hidden rules, from a million",
            kind="tokens",
            defaults={"k_episodes": 5, "rooms": 1, "grid_size": 9},
            extra="xland",
            packages=("xminigrid",),
            tested_with="xminigrid 0.9.3, jax 0.10.2",
            episode_steps=1220,
            steps_of=lambda env: int(env.unwrapped.suggested_max_seq_len),
            id_prefix="XLand-MiniGrid-R",
            id_arguments=_xland_arguments,
            example_id="XLand-MiniGrid-R1-9x9",
            rows_argument="parallel_envs",
        ),
    ]


def _pixels() -> list[CatalogEntry]:
    atari = "amago.envs.builtin.ale_retro"
    # Convolutions take a tenth of the time of 84 x 84 pixels; (H, W, C) is the order of CNNTstepEncoder.
    small_screens: dict[str, Any] = {"grayscale": True, "resolution": (48, 48), "channels_last": True}
    return [
        CatalogEntry(
            name="AtariGame",
            module=atari,
            factory="AtariGame",
            description="one Atari game",
            kind="pixels",
            defaults={"game": "Pong", **small_screens},
            wrapper="AtariAMAGOWrapper",
            extra="atari",
            packages=("ale_py", "cv2"),
            tested_with="ale-py 0.12.1",
            episode_steps=27_000,
            steps_of=lambda env: math.ceil(env.unwrapped.time_limit / env.unwrapped.frame_skip),
            id_prefix="ALE/",
            id_arguments=_ale_arguments,
            example_id="ALE/Pong-v5",
        ),
        CatalogEntry(
            name="ALE",
            module=atari,
            factory="ALE",
            description="several Atari games, one drawn per episode",
            kind="pixels",
            defaults={"game_names": ["Pong", "Boxing", "Breakout"]},
            wrapper="AtariAMAGOWrapper",
            extra="atari",
            packages=("ale_py", "cv2"),
            tested_with="ale-py 0.12.1",
            episode_steps=27_000,
        ),
        CatalogEntry(
            name="RetroArcade",
            module=atari,
            factory="RetroArcade",
            description="games of home consoles",
            kind="pixels",
            defaults={"game_start_dict": {"Airstriker-Genesis-v0": ["Level1.state"]}, "channels_last": True},
            wrapper="RetroAMAGOWrapper",
            extra="retro",
            packages=("stable_retro", "cv2"),
            tested_with="stable-retro 1.0.1",
            episode_steps=9000,
            one_per_process=True,
        ),
        CatalogEntry(
            name="Procgen",
            module="amago.envs.builtin.procgen_envs",
            factory="TwoAttemptMTProcgen",
            description="two attempts at a generated level of an arcade game",
            kind="pixels",
            defaults={"games": ["coinrun"], "distribution_mode": "easy"},
            wrapper="ProcgenAMAGO",
            packages=("cffi", "gym3", "procgen"),
            install=PROCGEN_INSTALL,
            tested_with="procgen2 0.10.7",
            episode_steps=2001,
        ),
    ]


def _control() -> list[CatalogEntry]:
    cheetah = "amago.envs.builtin.half_cheetah_v4_vel"
    return [
        CatalogEntry(
            name="HalfCheetahLogVelocity",
            module=cheetah,
            factory="HalfCheetahV4LogVelocity",
            description="HalfCheetah that reports its velocity",
            kind="vectors",
            extra="mujoco",
            packages=("mujoco",),
            tested_with="mujoco 3.3.0",
            episode_steps=1000,
        ),
        CatalogEntry(
            name="HalfCheetahMetaVelocity",
            module=cheetah,
            factory="HalfCheetahV4_MetaVelocity",
            description="run at a hidden velocity, drawn per episode",
            kind="memory",
            extra="mujoco",
            packages=("mujoco",),
            tested_with="mujoco 3.3.0",
            episode_steps=1000,
            context=32,
            reward_multiplier=1.0,
        ),
        CatalogEntry(
            name="Metaworld",
            module="amago.envs.builtin.metaworld_ml",
            factory="Metaworld",
            description="robot arm tasks with hidden goals, k attempts (ML1, ML10, ML45)",
            kind="memory",
            defaults={"benchmark_name": "reach-v3", "split": "train", "k_episodes": 1},
            extra="metaworld",
            packages=("metaworld",),
            tested_with="metaworld 3.1.1, mujoco 3.3.0",
            episode_steps=500,
            context=128,
            reward_multiplier=1.0,
            id_prefix="metaworld/",
            id_arguments=_after_slash("benchmark_name"),
            example_id="metaworld/reach-v3",
        ),
        CatalogEntry(
            name="Alchemy",
            module="amago.envs.builtin.alchemy",
            factory="SymbolicAlchemy",
            description="ten trials on the same hidden chemistry",
            kind="memory",
            packages=("dm_env", "dm_alchemy"),
            install=ALCHEMY_INSTALL,
            tested_with="a stand-in with the interface of dm_alchemy",
            episode_steps=200,
        ),
        CatalogEntry(
            name="DMControl",
            module="amago.envs.builtin.dm_control_envs",
            factory="DMControl",
            description="DeepMind Control suite",
            kind="vectors",
            defaults={"domain": "cartpole", "task": "balance"},
            extra="dm-control",
            packages=("dm_control",),
            tested_with="dm_control 1.0.28",
            episode_steps=1000,
            id_prefix="dm_control/",
            id_arguments=lambda env_id: {"domain": env_id, "task": None},
            example_id="dm_control/cheetah-run",
        ),
        CatalogEntry(
            name="Minari",
            module="amago.envs.builtin.minari_envs",
            factory="MinariAMAGOEnv",
            description="offline datasets, D4RL's among them, and their environments",
            kind="offline",
            extra="minari",
            packages=("minari", "h5py"),
            tested_with="minari 0.5.4",
            steps_of=lambda env: env.spec.max_episode_steps if env.spec else None,
            id_prefix="minari/",
            id_arguments=_after_slash("dataset"),
            example_id="minari/D4RL/pointmaze/umaze-v2",
        ),
        CatalogEntry(
            name="Gymnax",
            module="amago.envs.builtin.gymnax_envs",
            factory="make_gymnax",
            description="environments in jax that step together",
            kind="vectors",
            defaults={"env_id": "CartPole-v1"},
            extra="gymnax",
            packages=("gymnax",),
            tested_with="gymnax 1.0.1, jax 0.10.2",
            id_prefix="gymnax/",
            id_arguments=_after_slash("env_id"),
            example_id="gymnax/CartPole-v1",
            memory_ids=tuple(f"gymnax/{name}" for name in _GYMNAX_MEMORY),
            rows_argument="num_envs",
        ),
        CatalogEntry(
            name="EnvPool",
            module="amago.envs.builtin.envpool_envs",
            factory="EnvPoolEnv",
            description="environments of EnvPool, which step in its threads",
            kind="vectors",
            defaults={"task_id": "CartPole-v1"},
            extra="envpool",
            packages=("envpool",),
            tested_with="envpool 1.0.0",
            steps_of=lambda env: int(env.unwrapped.pool.spec.config.max_episode_steps) or None,
            id_prefix="envpool/",
            id_arguments=_after_slash("task_id"),
            example_id="envpool/CartPole-v1",
            rows_argument="num_envs",
        ),
    ]


def _steps_from(*attributes: str) -> Callable[[Any], int]:
    """The steps of an episode are the product of these attributes of the innermost environment."""

    def steps(env: Any) -> int:
        return math.prod(int(getattr(env.unwrapped, name)) for name in attributes)

    return steps


def _steps_of_babyai(env: Any) -> int | None:
    """Steps of k attempts at the first task, and one between each two; an instruction decides its own limit."""
    env.reset(seed=0)
    limit = int(env.sample_new_env(env.task_names[0]).unwrapped.max_steps)
    return int(env.k_episodes * limit + env.k_episodes - 1)


def _after_slash(argument: str) -> Callable[[str], dict[str, Any]]:
    """Passes what follows the family's "prefix/" in an id as `argument`."""
    return lambda env_id: {argument: env_id.partition("/")[2]}


def _ale_arguments(env_id: str) -> dict[str, Any]:
    game, _, version = env_id.partition("/")[2].rpartition("-")
    return {"game": game, "version": version, "full_action_space": False}  # as gymnasium.make of this id


def _xland_arguments(env_id: str) -> dict[str, Any]:
    """rooms and grid_size of "XLand-MiniGrid-R1-9x9"."""
    found = re.fullmatch(r"XLand-MiniGrid-R(\d+)-(\d+)x\2", env_id)
    if found is None:
        raise ValueError(f"{env_id!r} is not of the form XLand-MiniGrid-R<rooms>-<size>x<size>")
    return {"rooms": int(found[1]), "grid_size": int(found[2])}


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry for entry in (*_toys(), *_popgym(), *_grids(), *_pixels(), *_control())
}
