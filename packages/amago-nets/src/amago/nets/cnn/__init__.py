"""Convolutional networks for images, and image augmentation.

`base` contains the base class, `plain` the plain CNNs, `impala` the residual CNN, `augment` the random
shifts.
"""

from amago.nets.cnn.augment import DrQv2Aug
from amago.nets.cnn.base import CNN, weight_init
from amago.nets.cnn.impala import IMPALAishCNN
from amago.nets.cnn.plain import DrQCNN, GridworldCNN, NatureishCNN, SmallImageCNN

__all__ = [
    "CNN",
    "DrQCNN",
    "DrQv2Aug",
    "GridworldCNN",
    "IMPALAishCNN",
    "NatureishCNN",
    "SmallImageCNN",
    "weight_init",
]
