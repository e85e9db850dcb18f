"""Data that others collected, as trajectories: plain arrays, HDF5 files and Minari datasets.

- `actions`: actions as an environment takes them, turned into the representation that trajectories hold
- `episodes`: rows of observations, actions and rewards, split into trajectories, each with its final observation
- `sources`: where the rows come from
- `store`: many trajectories in a few long arrays, in memory or mapped from files
- `dataset`: OfflineDataset, which draws from them
- `writing`: the way back, from trajectories to plain arrays
"""

from amago.loading.offline.dataset import OfflineDataset
from amago.loading.offline.episodes import episodes_from_arrays
from amago.loading.offline.sources import episodes_from_file, episodes_from_minari
from amago.loading.offline.writing import save_arrays

__all__ = [
    "OfflineDataset",
    "episodes_from_arrays",
    "episodes_from_file",
    "episodes_from_minari",
    "save_arrays",
]
