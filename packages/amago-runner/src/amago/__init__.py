"""AMAGO: the off-policy actor-critic for long sequences."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
