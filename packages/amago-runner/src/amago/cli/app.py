"""The commands of `amago-run`: what they take, and how a mistake is answered.

The work is done elsewhere and imported when a command runs, so that `--help` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from amago.cli import flags
from amago.cli.options import UsageProblem, nearest, parse_arguments
from amago.cli.recipes import recipe_for
from amago.cli.runs import default_run_name, find_run

app = typer.Typer(
    help="Train and evaluate agents that adapt by remembering.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RUNS = Path("runs")
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its folder.")]


class _Command(TyperCommand):
    """A command that answers a mistyped option with the nearest one instead of all that are similar."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            similar = getattr(error, "possibilities", None)
            if similar and (near := nearest(getattr(error, "option_name", ""), similar)):
                error.possibilities = [near]  # type: ignore[attr-defined]
            raise


@contextmanager
def _answering_mistakes(context: typer.Context) -> Iterator[None]:
    """Shows a `UsageProblem` as typer shows its own: without a traceback, exit code 2."""
    try:
        yield
    except UsageProblem as problem:
        raise typer.BadParameter(str(problem), ctx=context, param_hint=problem.option) from problem


@app.command(cls=_Command, epilog="Later wins: recipe, options, --gin files from left to right, --set.")
def train(
    context: typer.Context,
    env: flags.Env = None,
    env_arg: flags.EnvArg = None,
    actors: flags.Actors = None,
    env_mode: flags.Mode = None,
    agent: flags.AgentName = None,
    tstep_encoder: flags.TstepEncoder = None,
    traj_encoder: flags.TrajEncoder = None,
    memory_size: flags.MemorySize = None,
    memory_layers: flags.MemoryLayers = None,
    max_seq_len: flags.MaxSeqLen = None,
    exploration: flags.Exploration = None,
    timesteps_per_epoch: flags.TimestepsPerEpoch = None,
    buffer_size: flags.BufferSize = None,
    epochs: flags.Epochs = None,
    batches_per_epoch: flags.BatchesPerEpoch = None,
    batch_size: flags.BatchSize = None,
    learning_rate: flags.LearningRate = None,
    mixed_precision: flags.MixedPrecision = None,
    loader_workers: flags.LoaderWorkers = None,
    run_name: flags.RunName = None,
    run_dir: flags.RunDir = _RUNS,
    seed: flags.Seed = None,
    resume: flags.Resume = False,
    overwrite: flags.Overwrite = False,
    val_interval: flags.ValInterval = None,
    ckpt_interval: flags.CkptInterval = None,
    eval_episodes: flags.EvalEpisodes = None,
    wandb: flags.Wandb = False,
    gin: flags.Gin = None,
    set_: flags.Set = None,
) -> None:
    """Train an agent on [bold]ENV[/], a builtin environment or any gymnasium id.

    Without ENV it trains the quickstart, an agent that learns to adapt: it
    meets a new frozen lake and has five attempts at it. An option that is not
    given follows the environment's recipe. The figures, picture, checkpoints
    and metrics of a run are in [bold]runs/NAME[/].
    """
    from amago.cli.train import Request, train_run

    with _answering_mistakes(context):
        changes = {
            "env_args": parse_arguments(env_arg, "--env-arg") if env_arg else None,
            "agent": agent,
            "tstep_encoder": tstep_encoder,
            "traj_encoder": traj_encoder,
            "exploration": exploration,
            "memory_size": memory_size,
            "memory_layers": memory_layers,
            "max_seq_len": max_seq_len,
            "actors": actors,
            "env_mode": env_mode.value if env_mode else None,
            "epochs": epochs,
            "timesteps_per_epoch": timesteps_per_epoch,
            "batches_per_epoch": batches_per_epoch,
            "batch_size": batch_size,
            "dset_max_size": buffer_size,
            "loader_workers": loader_workers,
            "learning_rate": learning_rate,
            "mixed_precision": mixed_precision.value if mixed_precision else None,
            "val_interval": val_interval,
            "ckpt_interval": ckpt_interval,
            "eval_episodes": eval_episodes,
            "seed": seed,
        }
        request = Request(
            folder=run_dir / (run_name or default_run_name(env)),
            recipe=recipe_for(env),
            changes={name: value for name, value in changes.items() if value is not None},
            gin_files=tuple(gin or ()),
            assignments=tuple(set_ or ()),
            resume=resume,
            overwrite=overwrite,
            wandb=wandb,
        )
        train_run(request, Console())


@app.command("eval", cls=_Command)
def evaluate(
    context: typer.Context,
    run: Run,
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fresh episodes.", show_default="as after training")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of the episodes.", show_default="the run's")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="latest|EPOCH", help="Weights after training, or after an epoch.")
    ] = "latest",
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = _RUNS,
    gin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="A .gin file; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Say FFTstepEncoder.hide_rl2s=True; repeatable."),
    ] = None,
) -> None:
    """Evaluate a trained [bold]RUN[/] on fresh episodes, without exploration.

    With the run's own seed and number of episodes this repeats the final
    figures of its summary.
    """
    from amago.cli.evaluate import evaluate_run

    with _answering_mistakes(context):
        evaluate_run(
            find_run(run, run_dir),
            episodes=episodes,
            seed=seed,
            checkpoint=checkpoint,
            gin_files=tuple(gin or ()),
            assignments=tuple(set_ or ()),
            console=Console(),
        )


@app.command(cls=_Command)
def compare(
    context: typer.Context,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Names of finished runs, or their folders.")
    ],
    out: Annotated[Path, typer.Option(metavar="PNG", help="The picture to write.")] = Path("comparison.png"),
    label: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Legend text, one per run, in their order.")
    ] = None,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = _RUNS,
) -> None:
    """Draw finished runs into one picture: learning curves, and success by attempt where there is such."""
    from amago.cli.evaluate import compare_runs

    with _answering_mistakes(context):
        folders = [find_run(run, run_dir) for run in runs]
        compare_runs(folders, labels=label, picture=out, console=Console())


@app.command("import-policy", cls=_Command)
def import_policy(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A saved policy, say policy.pt."),
    ],
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name or folder of a run; of the new one with --env.")
    ],
    env: Annotated[
        str | None, typer.Option(metavar="ENV", help="Make the run, with this environment.")
    ] = None,
    env_arg: flags.EnvArg = None,
    max_seq_len: flags.MaxSeqLen = None,
    run_dir: flags.RunDir = _RUNS,
    gin: flags.Gin = None,
    set_: flags.Set = None,
) -> None:
    """Make the weights in [bold]FILE[/] the latest policy of [bold]RUN[/], for eval to use.

    The file holds a state dict of an agent, as torch.save writes it, this
    library's or one with the same names. Says what agent it is of. RUN is a
    run whose agent has the same sizes. If there is none, --env ENV makes one
    with the sizes in the file. Activations, discounts, the length of
    sequences and the like leave no trace in weights: they are the defaults
    unless --max-seq-len, --gin or --set give those of the run that wrote it.
    """
    from amago.cli.import_policy import Import
    from amago.cli.import_policy import import_policy as put_policy

    with _answering_mistakes(context):
        request = Import(
            file=file,
            run=run,
            run_dir=run_dir,
            env=env,
            env_args=parse_arguments(env_arg, "--env-arg") if env_arg else {},
            max_seq_len=max_seq_len,
            gin_files=tuple(gin or ()),
            assignments=tuple(set_ or ()),
        )
        put_policy(request, Console())


@app.command(cls=_Command)
def convert(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(metavar="SRC", exists=True, help="A trajectory file, a folder or buffer, or arrays."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file or folder to make.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="npz, npz-compressed, traj or arrays.", show_default="by the ending of DST"
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Of arrays: discrete:N, discrete:N1,N2, box:LOW:HIGH or binary."),
    ] = None,
    env_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of trajectories from arrays.", show_default="SRC's")
    ] = None,
) -> None:
    """Convert trajectories from one format to another, or from and to plain arrays.

    Trajectories are .npz and .traj files, one by one or a whole buffer.
    Arrays are one .npz or .h5 of observations, actions, rewards, terminals
    and timeouts, or the folder of a Minari dataset. DST appears whole or not
    at all, and must not exist.
    """
    from amago.cli.convert import Conversion
    from amago.cli.convert import convert as convert_files

    with _answering_mistakes(context):
        request = Conversion(source=source, target=target, to=to, actions=actions, env_name=env_name)
        if convert_files(request, Console()):
            raise typer.Exit(1)


@app.command(cls=_Command)
def inspect(
    context: typer.Context,
    buffer: Annotated[
        Path,
        typer.Argument(
            metavar="BUFFER", help="A dataset's folder, a folder of trajectory files or one file."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a buffer of trajectories holds: counts, lengths, returns, sizes and bad files."""
    from amago.cli.inspect_buffer import inspect_buffer

    with _answering_mistakes(context):
        if inspect_buffer(buffer, Console(), as_json=as_json):
            raise typer.Exit(1)
