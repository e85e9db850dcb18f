"""Convolutional networks for images, and image augmentation.

`base` holds the base class, `plain` the stacks of convolutions, `impala` the residual network, `augment` random
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
