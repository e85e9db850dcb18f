"""From stored trajectories to training batches.

A dataset (`RLDataset`) samples windows of trajectories (`RLData`), `RLData_pad_collate` makes a `Batch` of
them, and `BatchLoader` feeds batches to the learner.
"""

from amago.agent.batch import Batch
from amago.loading.collate import RLData_pad_collate
from amago.loading.dataset import DoNothingDataset, RLDataset
from amago.loading.loader import BatchLoader
from amago.loading.mixture import MixtureOfDatasets
from amago.loading.offline import OfflineDataset
from amago.loading.replay_buffer import DiskTrajDataset, get_path_to_trajs, load_traj_from_disk
from amago.loading.rl_data import RLData
from amago.nets.masking import MAGIC_PAD_VAL

__all__ = [
    "MAGIC_PAD_VAL",
    "Batch",
    "BatchLoader",
    "DiskTrajDataset",
    "DoNothingDataset",
    "MixtureOfDatasets",
    "OfflineDataset",
    "RLData",
    "RLData_pad_collate",
    "RLDataset",
    "get_path_to_trajs",
    "load_traj_from_disk",
]
