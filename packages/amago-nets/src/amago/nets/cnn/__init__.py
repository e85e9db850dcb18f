"""Convolutional networks for images, and random shifts to augment them.

`base` holds what all share, `plain` the stacks of convolutions, `impala` the residual network, `augment` the
shifts.
"""

from amago.nets.cnn.augment import DrQv2Aug
from amago.nets.cnn.base import CNN, weight_init
from amago.nets.cnn.impala import IMPALAishCNN
from amago.nets.cnn.plain import DrQCNN, GridworldCNN, NatureishCNN

__all__ = [
    "CNN",
    "DrQCNN",
    "DrQv2Aug",
    "GridworldCNN",
    "IMPALAishCNN",
    "NatureishCNN",
    "weight_init",
]
