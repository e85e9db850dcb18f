"""From stored trajectories to training batches.

A dataset (`RLDataset`) draws trajectories, `RLData.random_slice` cuts windows out of them, `RLData_pad_collate`
makes a `Batch`, and `amago.loading.batches.BatchLoader` feeds them to the learner.
"""

from amago.agent.batch import Batch
from amago.loading.collate import RLData_pad_collate
from amago.loading.dataset import DoNothingDataset, RLDataset
from amago.loading.disk import DiskTrajDataset, get_path_to_trajs, load_traj_from_disk
from amago.loading.mixture import MixtureOfDatasets
from amago.loading.offline import OfflineDataset
from amago.loading.sample import RLData
from amago.nets.masking import MAGIC_PAD_VAL

__all__ = [
    "MAGIC_PAD_VAL",
    "Batch",
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
