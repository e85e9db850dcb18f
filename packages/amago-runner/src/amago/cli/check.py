"""`amago-run check-env`: prints what is wrong with an environment and what an agent will see of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from amago.cli.build import RunPlan, bind_gin, build_agent, plan_run
from amago.cli.environments import EnvMaker, resolve_environment
from amago.cli.options import UsageProblem
from amago.cli.text import duration
from amago.envs.builtin.catalog import find_entry
from amago.envs.check_env import EnvReport, check_env
from amago.utils import count_params


def check_environment(changes: Mapping[str, Any], *, episodes: int, console: Console) -> int:
    """Checks an environment, prints the report, and returns the number of errors.

    Args:
        changes: settings of the recipe: "env", and perhaps "env_args" and "kind".
        episodes: episodes to play.
        console: where to print.

    Raises:
        UsageProblem: there is no such environment.
    """
    maker = resolve_environment(changes["env"], changes.get("env_args", {}))
    report = check_env(lambda: _make_unchecked(maker), episodes=episodes)
    plan, agent_problem = None, ""
    if not report.errors:
        try:
            plan = plan_run(changes)
            report = report if plan.maker.num_envs == 1 else check_env(plan.maker, episodes=episodes)
        except UsageProblem as problem:
            agent_problem = problem.message
    _print_findings(console, maker.name, report, agent_problem)
    _print_view(console, report)
    if plan is not None:
        _print_agent(console, plan, report.steps_per_second)
    return len(report.errors) + bool(agent_problem)


def _make_unchecked(maker: EnvMaker) -> Any:
    """The environment without gymnasium's own checks, which would raise before ours are reported."""
    if find_entry(maker.name) is None and maker.name.rpartition(":")[2] in gymnasium.registry:
        return gymnasium.make(maker.name, disable_env_checker=True, **maker.args)
    return maker.make()


def _print_findings(console: Console, name: str, report: EnvReport, agent_problem: str) -> None:
    for finding in report.findings:
        colour = "red" if finding.level == "error" else "yellow"
        line = f"[{colour}]{finding.level}[/]  [bold]{escape(finding.subject)}[/]  {escape(finding.message)}"
        console.print(line, highlight=False)
    if agent_problem:
        console.print(f"[red]error[/]  [bold]agent[/]  {escape(agent_problem)}", highlight=False)
    errors, warnings = len(report.errors) + bool(agent_problem), len(report.warnings)
    colour = "red" if errors else "yellow" if warnings else "green"
    console.print(f"[{colour}]{escape(name)}: {errors} errors, {warnings} warnings[/]", highlight=False)


def _print_view(console: Console, report: EnvReport) -> None:
    if not report.observations:
        return
    table = Table("The agent sees", "shape", "dtype", "range", box=None, pad_edge=False, header_style="bold")
    for key, box in report.observations.items():
        bounds = f"{float(box.low.min()):.4g} to {float(box.high.max()):.4g}"
        table.add_row(escape(key), str(box.shape), str(box.dtype), bounds)
    table.add_row("previous reward and action", f"({report.rl2_width},)", "float32", "")
    console.print("", table, "")
    rows = Table.grid(padding=(0, 2))
    rows.add_row("Actions", f"{report.action_space}; the policy acts in {report.policy_space}")
    if report.episode_lengths:
        lengths, returns = report.episode_lengths, report.returns
        rows.add_row(
            "Random actions",
            f"{len(lengths)} episodes of {min(lengths)} to {max(lengths)} steps, "
            f"returns {min(returns):.4g} to {max(returns):.4g}",
        )
    if report.rewards is not None:
        rows.add_row("Rewards", f"{report.rewards[0]:.4g} to {report.rewards[1]:.4g}")
    if report.steps_per_second is not None:
        rows.add_row("Speed", f"{report.steps_per_second:,.0f} steps per second in one process")
    console.print(rows, highlight=False)


def _print_agent(console: Console, plan: RunPlan, steps_per_second: float | None) -> None:
    """What `amago-run train` makes of the environment."""
    recipe = plan.recipe
    bind_gin(plan.gin)
    agent = build_agent(plan)
    rows = Table.grid(padding=(0, 2))
    rows.add_row("Kind", recipe.kind or plan.facts.kind)
    rows.add_row(
        "Time limit", "none" if plan.facts.time_limit is None else f"{plan.facts.time_limit:,} steps"
    )
    rows.add_row("Encoders", f"{recipe.tstep_encoder} for a step, {recipe.traj_encoder} for sequences")
    if recipe.traj_encoder in ("ff", "identity"):
        remedy = "--traj-encoder transformer" if plan.facts.kind == "offline" else "--kind memory"
        rows.add_row("Memory", f"none; if earlier steps or attempts must be remembered: {remedy}")
    rows.add_row("Context", f"{recipe.max_seq_len} steps (--max-seq-len)")
    rows.add_row("Parameters", f"{count_params(agent):,}")
    rows.add_row(
        "Training",
        f"{recipe.env_steps:,} environment steps, {recipe.epochs * recipe.batches_per_epoch:,} updates "
        f"of {recipe.batch_size} sequences",
    )
    if steps_per_second and recipe.env_mode == "sync" and recipe.env_steps:
        rows.add_row(
            "Stepping", f"{duration(recipe.env_steps / steps_per_second)} of that training, at this speed"
        )
    console.print(rows, highlight=False)
