"""Offline data: plain arrays, HDF5 files and Minari datasets as trajectories.

- `episodes`: splits arrays of observations, actions and rewards into trajectories
- `array_files`: reads and writes files of plain arrays
- `dataset`: OfflineDataset, which converts such data into a replay buffer once
"""

from amago.loading.offline.array_files import episodes_from_file, episodes_from_minari, save_arrays
from amago.loading.offline.dataset import OfflineDataset
from amago.loading.offline.episodes import episodes_from_arrays

__all__ = [
    "OfflineDataset",
    "episodes_from_arrays",
    "episodes_from_file",
    "episodes_from_minari",
    "save_arrays",
]
