"""The commands of `amago-run` and their options.

Each command imports its implementation when it runs, so `--help` does not wait for torch.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperCommand

from amago.cli.options import UsageProblem, recipe_options
from amago.cli.recipe import ENVIRONMENT, GIN, RUN
from amago.cli.run_folders import default_run_name, find_run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command whose usage is shown above a `UsageProblem`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageProblem as problem:
            problem.ctx = ctx
            raise
        except RuntimeError as error:
            from amago.experiment.trusted import UntrustedNameError  # imports torch

            if not isinstance(error, UntrustedNameError):
                raise
            remedy = f"If you trust it, add --trust {error.package}." if error.package else ""
            raise UsageProblem(f"{error.problem}. {remedy}".strip(), "RUN") from error


Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its folder.")]
RunDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds all runs.", rich_help_panel=RUN)]
Gin = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="A gin file; repeatable.", rich_help_panel=GIN
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A gin setting, e.g. Agent.gamma=0.99; repeatable.",
        rich_help_panel=GIN,
    ),
]
RunName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the run.", show_default="ENV", rich_help_panel=RUN),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from the last checkpoint.", rich_help_panel=RUN)
]
AutoResume = Annotated[
    bool,
    typer.Option(
        "--auto-resume",
        help="Continue if there is a checkpoint, else start a new run; for jobs that are restarted.",
        rich_help_panel=RUN,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing run of this name.", rich_help_panel=RUN)
]
Wandb = Annotated[bool, typer.Option("--wandb", help="Also log to Weights & Biases.", rich_help_panel=RUN)]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard files.", rich_help_panel=RUN)
]
LikeTrain = Annotated[
    str | None,
    typer.Argument(
        metavar="ENV", help="Environment, as for `amago-run train`.", show_default="the quickstart"
    ),
]
Checkpoint = Annotated[
    str, typer.Option(metavar="latest|EPOCH", help="Latest policy, or that of an epoch's checkpoint.")
]
RUNS = Path("runs")


def _print_versions(value: bool) -> None:
    if value:
        from amago.cli.doctor import version_lines

        print("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Show all versions.")
    ] = False,
) -> None:
    """Train and evaluate reinforcement learning agents that adapt through memory."""


def _trust(packages: list[str] | None) -> list[str] | None:
    from amago.experiment.trusted import trust_only

    trust_only(packages or ())
    return packages


Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        callback=_trust,
        help="A package, besides amago, whose classes a run may load; repeatable.",
        rich_help_panel=RUN,
    ),
]


class Mode(str, Enum):
    """What a process does for its run."""

    both = "both"
    collect = "collect"
    learn = "learn"


def _which_resume(resume: bool, auto_resume: bool, overwrite: bool) -> bool | Literal["auto"]:
    """The experiment's `resume`."""
    if resume + auto_resume + overwrite > 1:
        raise UsageProblem("give one of --resume, --auto-resume and --overwrite.", "--resume")
    return "auto" if auto_resume else resume


@app.command(cls=_Command, epilog="Later wins: defaults, options, --gin files from left to right, --set.")
@recipe_options()
def train(
    changes: dict[str, Any],
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV",
            help="A name or id that `amago-run list environments` shows, any Gymnasium id, or MODULE:ID.",
            show_default="the quickstart",
        ),
    ] = None,
    run_name: RunName = None,
    run_dir: RunDir = RUNS,
    resume: Resume = False,
    auto_resume: AutoResume = False,
    overwrite: Overwrite = False,
    wandb: Wandb = False,
    tensorboard: Tensorboard = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="Only collect or only learn, in a run shared with other processes.", rich_help_panel=RUN
        ),
    ] = Mode.both,
    gin: Gin = None,
    set_: Set = None,
    trust: Trust = None,
) -> None:
    """Train an agent on [bold]ENV[/], a builtin environment or any Gymnasium id.

    The default settings are those of the environment's kind ([bold]amago-run list recipes[/]).

    Without ENV this trains the quickstart: MetaFrozenLake, where an agent has
    five attempts at a new frozen lake in every episode and learns to improve
    from one attempt to the next. Checkpoints, metrics, the summary and the
    learning curve of a run are in [bold]runs/NAME[/].
    """
    folder = run_dir / (run_name or default_run_name(env))
    if env is not None:
        changes["env"] = env
    resume_or_auto = _which_resume(resume, auto_resume, overwrite)
    settings: dict[str, Any] = {"gin_files": gin or (), "assignments": set_ or (), "log_to_wandb": wandb}
    if mode is Mode.collect:
        starts = {"--resume": resume, "--auto-resume": auto_resume, "--overwrite": overwrite}
        for option, given in {**starts, "--tensorboard": tensorboard}.items():
            if given:
                raise UsageProblem("it has no effect on a collector: give it to the learner only.", option)
        from amago.cli.separate import collect_run

        collect_run(folder, changes, console=Console(), **settings)
        return
    from amago.cli.train import train_run

    train_run(
        folder,
        changes,
        resume=resume_or_auto,
        overwrite=overwrite,
        log_to_tensorboard=tensorboard,
        only_learn=mode is Mode.learn,
        console=Console(),
        **settings,
    )


@app.command(cls=_Command)
@recipe_options()
def launch(
    changes: dict[str, Any],
    env: LikeTrain = None,
    collectors: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of collectors.", rich_help_panel=RUN)
    ] = 2,
    ratio: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            help="Updates per environment step; the faster side waits.",
            show_default="no side waits",
            rich_help_panel=RUN,
        ),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Run on the nodes of a Ray cluster.", rich_help_panel=RUN)
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the Ray cluster, or auto.",
            show_default="$RAY_ADDRESS, or a cluster on this machine",
            rich_help_panel=RUN,
        ),
    ] = None,
    run_name: RunName = None,
    run_dir: RunDir = RUNS,
    resume: Resume = False,
    auto_resume: AutoResume = False,
    overwrite: Overwrite = False,
    wandb: Wandb = False,
    tensorboard: Tensorboard = False,
    gin: Gin = None,
    set_: Set = None,
    trust: Trust = None,
) -> None:
    """Train with a learner and several collectors, each in its own process.

    The options are those of [bold]train[/]; --actors is the number of
    environments of each collector. A table shows the state of every process; their
    output is in logs/ of the run's folder. With --cluster, collectors run on
    any node of a Ray cluster and need no file system shared with the learner,
    which runs on this machine.
    """
    from amago.cli.launch import launch_run

    status = launch_run(
        run_dir / (run_name or default_run_name(env)),
        changes if env is None else {"env": env, **changes},
        gin_files=gin or (),
        assignments=set_ or (),
        resume=_which_resume(resume, auto_resume, overwrite),
        overwrite=overwrite,
        log_to_wandb=wandb,
        log_to_tensorboard=tensorboard,
        collectors=collectors,
        ratio=ratio,
        cluster=cluster or address is not None,
        address=address,
        trust=trust or (),
        console=Console(),
    )
    if status:
        raise typer.Exit(status)


@app.command("list", cls=_Command)
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="environments, recipes, agents, tstep-encoders, traj-encoders or explorations.",
            show_default="all",
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Argument(metavar="MODULE", help="A module that registers user-defined classes.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the environments as a Markdown table.")
    ] = False,
) -> None:
    """List environments, the default settings of each kind of environment, and registered classes."""
    from amago.cli.listing import show_list

    show_list(Console(), what, module=module, markdown=markdown)


@app.command("check-env", cls=_Command)
@recipe_options("kind", "env_args")
def check_env(
    changes: dict[str, Any],
    env: Annotated[str, typer.Argument(metavar="ENV", help="Environment, as for `amago-run train`.")],
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Episodes to play.")] = 3,
) -> None:
    """Check an environment with random actions: report mistakes, and what an agent observes.

    The exit status is 1 if there are errors; warnings leave it 0.
    """
    from amago.cli.check import check_environment

    if check_environment({"env": env, **changes}, episodes=episodes, console=Console()):
        raise typer.Exit(1)


@app.command("eval", cls=_Command)
def evaluate(
    run: Run,
    episodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of episodes.", show_default="as after training"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed of the episodes.", show_default="the run's"),
    ] = None,
    checkpoint: Checkpoint = "latest",
    render: Annotated[bool, typer.Option("--render", help="Write a video of additional episodes.")] = False,
    video: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Video file, .gif or .mp4.",
            show_default="RUN/episodes.gif, with --render",
        ),
    ] = None,
    video_episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Episodes in the video.")] = 2,
    run_dir: RunDir = RUNS,
    gin: Gin = None,
    set_: Set = None,
    trust: Trust = None,
) -> None:
    """Evaluate the policy of a [bold]RUN[/] on new episodes, without exploration noise.

    With the default options this repeats the evaluation after training.
    """
    from amago.cli.evaluate import evaluate_run

    folder = find_run(run, run_dir)
    if render and video is None:
        video = folder / "episodes.gif"
    evaluate_run(
        folder,
        episodes=episodes,
        seed=seed,
        checkpoint=checkpoint,
        gin_files=gin or (),
        assignments=set_ or (),
        console=Console(),
        video=video,
        video_episodes=video_episodes,
    )


@app.command(cls=_Command)
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT.pt2", help="The program to write.")],
    checkpoint: Checkpoint = "latest",
    run_dir: RunDir = RUNS,
    trust: Trust = None,
) -> None:
    """Export the policy of a [bold]RUN[/] with torch.export, as a program that needs only torch.

    The file OUT.json beside it holds the names, shapes and dtypes of its inputs
    and outputs: observations, reward, done, the state, and the action in the
    units of the environment. docs/using-policies.md shows how to run it.
    """
    from amago.cli.export import export_run

    export_run(find_run(run, run_dir), out, checkpoint, Console())


@app.command(cls=_Command)
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of runs.")],
    out: Annotated[Path, typer.Option(metavar="PNG", help="The picture to write.")] = Path("comparison.png"),
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Legend text; one per run, in the order of the runs.",
            show_default="the runs' names",
        ),
    ] = None,
    run_dir: RunDir = RUNS,
) -> None:
    """Plot several runs in one figure: learning curves and success rates by attempt.

    Runs that differ only in their seed are averaged. Runs may be unfinished.
    Every environment has its own panels.
    """
    from amago.cli.evaluate import compare_runs

    folders = [find_run(run, run_dir) for run in runs]
    compare_runs(folders, labels=label, picture=out, console=Console())


@app.command("import-policy", cls=_Command)
@recipe_options()
def import_policy(
    changes: dict[str, Any],
    policy: Annotated[
        Path,
        typer.Argument(
            metavar="POLICY", exists=True, dir_okay=False, help="A file of weights: .pt or .safetensors."
        ),
    ],
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a run, or name of a new run.")],
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ENV", help="Create a new run in this environment.", rich_help_panel=ENVIRONMENT
        ),
    ] = None,
    run_dir: RunDir = RUNS,
    gin: Gin = None,
    set_: Set = None,
    trust: Trust = None,
) -> None:
    """Load the weights in [bold]POLICY[/] into [bold]RUN[/] as its latest policy, for use with eval.

    The file holds the state dict of an agent as torch.save writes it, alone or
    inside a larger checkpoint. RUN is an existing run with the same encoders
    and sizes or, with --env, the name of a new run, which is created with the
    options of train. They must be those that the policy was trained with.
    """
    from amago.cli.import_policy import import_policy as import_into_run

    import_into_run(
        policy,
        run,
        run_dir,
        changes if env is None else {"env": env, **changes},
        gin_files=gin or (),
        assignments=set_ or (),
        console=Console(),
    )


@app.command(cls=_Command)
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", exists=True, help="Trajectory file, folder, buffer, or file of arrays."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file or folder to write.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Format to write: npz, npz-compressed, traj or arrays.",
            show_default="by the extension of DST",
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Action space of arrays: discrete:N, discrete:N1,N2, box:LOW:HIGH or binary.",
        ),
    ] = None,
    env_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment name of trajectories from arrays.", show_default="SRC's"
        ),
    ] = None,
) -> None:
    """Convert trajectories to another file format, or to and from plain arrays.

    Trajectories are single .npz and .traj files or a whole buffer. Arrays are
    one .npz or .h5 file of observations, actions, rewards, terminals and
    timeouts, or the folder of a Minari dataset. DST must not exist.
    """
    from amago.cli.convert import convert as convert_files

    if convert_files(source, target, Console(), to=to, actions=actions, env_name=env_name):
        raise typer.Exit(1)


@app.command(cls=_Command)
def inspect(
    buffer: Annotated[
        Path,
        typer.Argument(
            metavar="BUFFER", help="A run's or dataset's folder, a folder of trajectory files or one file."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the contents of a replay buffer: counts, lengths, returns, sizes and unreadable files."""
    from amago.cli.inspect_buffer import inspect_buffer

    if inspect_buffer(buffer, Console(), as_json=as_json):
        raise typer.Exit(1)


@app.command(cls=_Command)
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of runs.")],
    out: Annotated[Path, typer.Option(metavar="HTML", help="The page to write.")] = Path("report.html"),
    run_dir: RunDir = RUNS,
) -> None:
    """Write a self-contained HTML page about one or several runs, finished or not.

    It shows the settings in which the runs differ, learning curves with the
    spread over seeds, success rates by attempt, speeds, the breakdown of the
    time, and checkpoints.
    """
    from amago.cli.report_page import write_report

    write_report([find_run(run, run_dir) for run in runs], out)
    Console().print(f"Report  {out}", highlight=False, soft_wrap=True)


@app.command(cls=_Command)
def watch(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Show a running [bold]RUN[/] in the terminal until it ends: progress, speeds, processes, metrics.

    If the output is not a terminal, the state is printed once. The exit status
    is 1 if the run ended without finishing and without a stop signal.
    """
    from amago.cli.watch import watch_run

    if not watch_run(find_run(run, run_dir), once=once, console=Console()):
        raise typer.Exit(1)


@app.command(cls=_Command)
@recipe_options()
def sweep(
    changes: dict[str, Any],
    env: LikeTrain = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of seeds, from --seed on.", rich_help_panel=RUN)
    ] = 5,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=V1,V2",
            help="Values of a gin setting, e.g. Agent.gamma=0.9,0.99, or of an option of train, e.g. "
            "traj_encoder=rnn,transformer; repeatable: all combinations are run.",
            rich_help_panel=RUN,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of parallel runs.",
            show_default="half the cores",
            rich_help_panel=RUN,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the sweep.", show_default="ENV-sweep", rich_help_panel=RUN
        ),
    ] = None,
    run_dir: RunDir = RUNS,
    gin: Gin = None,
    trust: Trust = None,
) -> None:
    """Train with several seeds and settings, and compare the results.

    The same command continues a sweep that was interrupted: finished runs are
    kept, others continue from their last checkpoint. Tables with interquartile
    means and bootstrap intervals, and a report, are in [bold]runs/NAME[/].
    The exit status is 1 if a run failed.
    """
    from amago.cli.sweep import run_sweep

    finished = run_sweep(
        run_dir / (name or f"{default_run_name(env)}-sweep"),
        changes if env is None else {"env": env, **changes},
        seeds=seeds,
        assignments=set_ or (),
        gin_files=gin or (),
        jobs=jobs,
        trust=trust or (),
        console=Console(),
    )
    if not finished:
        raise typer.Exit(1)


@app.command(cls=_Command)
def doctor(run_dir: RunDir = RUNS) -> None:
    """Check installation, devices, backends, disk and memory, and run a short training in a temporary folder.

    If a check fails, the output names a remedy and the exit status is 1.
    """
    from amago.cli.doctor import run_doctor

    if not run_doctor(Console(), run_dir):
        raise typer.Exit(1)
