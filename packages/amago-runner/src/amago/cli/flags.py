"""The options of `amago-run train`, each with its help text and the panel it stands in.

They are declared once as annotated types; a command takes those that it needs. A value of None means that the
option was not given and the recipe decides.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

_ENVIRONMENT = "Environment"
_AGENT = "Agent"
_COLLECTING = "Collecting"
_LEARNING = "Learning"
_RUN = "Run"
_GIN = "Everything else, through gin"


class EnvMode(str, Enum):
    """How the actors' environments step."""

    SYNC = "sync"
    ASYNC = "async"
    ALREADY_VECTORIZED = "already_vectorized"


class Precision(str, Enum):
    """Number format of the forward pass."""

    NO = "no"
    BF16 = "bf16"


Env = Annotated[
    str | None,
    typer.Argument(
        metavar="ENV",
        help="MetaFrozenLake, RoomKeyDoor, TMazeAltPassive, TMazeAltActive or a gymnasium id.",
        show_default="the quickstart",
    ),
]
EnvArg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Argument of the environment; repeatable.", rich_help_panel=_ENVIRONMENT
    ),
]
Mode = Annotated[
    EnvMode | None,
    typer.Option(
        metavar="MODE",
        help="sync: in this process; async: in workers; already_vectorized.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
Actors = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Environments side by side.", rich_help_panel=_ENVIRONMENT),
]

AgentName = Annotated[
    str | None, typer.Option(metavar="NAME", help="How it learns: agent, multitask.", rich_help_panel=_AGENT)
]
TstepEncoder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What sees a step: ff, cnn, multimodal.",
        show_default="by the observations",
        rich_help_panel=_AGENT,
    ),
]
TrajEncoder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The memory: transformer, mamba, rnn, ff, identity.", rich_help_panel=_AGENT
    ),
]
MemorySize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Width of the memory.", rich_help_panel=_AGENT)
]
MemoryLayers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Depth of the memory.", rich_help_panel=_AGENT)
]
MaxSeqLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Steps that it remembers.",
        show_default="the time limit",
        rich_help_panel=_AGENT,
    ),
]

Exploration = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Noise on actions: egreedy, bilevel.", rich_help_panel=_COLLECTING),
]
TimestepsPerEpoch = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Steps of each actor.", rich_help_panel=_COLLECTING)
]
BufferSize = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Trajectories in the replay buffer.", rich_help_panel=_COLLECTING),
]

Epochs = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Rounds of collecting and learning.", rich_help_panel=_LEARNING),
]
BatchesPerEpoch = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Updates in an epoch.", rich_help_panel=_LEARNING)
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Sequences in a batch.", rich_help_panel=_LEARNING)
]
LearningRate = Annotated[
    float | None,
    typer.Option(metavar="RATE", min=0.0, help="Of AdamW, after its warm-up.", rich_help_panel=_LEARNING),
]
MixedPrecision = Annotated[
    Precision | None, typer.Option(help="Number format of the networks.", rich_help_panel=_LEARNING)
]
LoaderWorkers = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Processes that read batches.", rich_help_panel=_LEARNING),
]

RunName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Folder of the run.", show_default="ENV", rich_help_panel=_RUN),
]
RunDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.", rich_help_panel=_RUN)]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Fixes every random number.", rich_help_panel=_RUN)
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that stopped.", rich_help_panel=_RUN)]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a run of this name.", rich_help_panel=_RUN)
]
Wandb = Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.", rich_help_panel=_RUN)]
ValInterval = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Epochs between evaluations.", rich_help_panel=_RUN)
]
CkptInterval = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Epochs between checkpoints.", rich_help_panel=_RUN)
]
EvalEpisodes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Fresh episodes of the final figures.", rich_help_panel=_RUN),
]

Gin = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="A .gin file; repeatable.", rich_help_panel=_GIN
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Say Agent.gamma=0.99; repeatable.", rich_help_panel=_GIN
    ),
]
