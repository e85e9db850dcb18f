"""What is special about environments that step several rows and reset them themselves.

Their observation after an episode's end is already the first one of the next episode. Gymnasium's vector
environments report the last one, and the last step's info, inside `info`; where nothing is reported the new
episode's first observation stands in for it.
"""

from collections.abc import Mapping
from typing import Any

from amago.envs.metrics import extract_batched_metrics, extract_metrics


def reported_metrics(info: Mapping[str, Any], batched_envs: int) -> list[tuple[int, dict[str, float]]]:
    """(row, {name: value}) of the metrics in `info` and in the last step's info of rows that were reset."""
    by_row = dict(extract_batched_metrics(info, batched_envs))
    final_info = info.get("final_info")
    if isinstance(final_info, Mapping):
        # gymnasium from 1.0 on: one array per key, with a mask beside it
        final = extract_batched_metrics(final_info, batched_envs)
    elif final_info is not None:
        # gymnasium 0.29: one info per row, None where no episode ended
        found = ((row, extract_metrics(row_info)) for row, row_info in enumerate(final_info) if row_info)
        final = [(row, metrics) for row, metrics in found if metrics]
    else:
        final = []
    for row, metrics in final:
        by_row[row] = {**by_row.get(row, {}), **metrics}
    return sorted(by_row.items())
