"""Arguments are checked against their annotations, once, for every constructor."""

import copy
import functools
import inspect
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import gin
import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, MinLen, MultipleOf

from amago.nets.arguments import (
    MAY_BE_INFINITE,
    Probability,
    Size,
    check_arguments,
    check_fields,
    check_value,
)

if TYPE_CHECKING:
    from decimal import Decimal


class Layer(torch.nn.Module):
    """A module with arguments of many kinds."""

    @check_arguments
    def __init__(
        self,
        width: Size,
        dropout: Probability = 0.0,
        *,
        norm: Literal["layer", "rmsnorm"] | None = None,
        bias: bool = True,
        sizes: Annotated[Sequence[Size], MinLen(1)] = (1,),
        later: "Decimal | None" = None,
        **others: int,
    ) -> None:
        super().__init__()
        self.width, self.dropout, self.norm = width, dropout, norm
        self.linear = torch.nn.Linear(int(width), int(width), bias=bool(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out


class WideLayer(Layer):
    """Another signature; the base class checks what is passed on."""

    def __init__(self, *args: Any, factor: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor


@gin.configurable(module="tests.arguments")
class ConfiguredLayer(Layer):
    """Gets arguments from gin."""

    @check_arguments
    def __init__(self, width: Size = gin.REQUIRED, bias: bool = True) -> None:
        super().__init__(width, bias=bias)


INT: Any = Annotated[int, Ge(1)]
WHOLE: Any = Annotated[float, Ge(0), MultipleOf(1), MAY_BE_INFINITE]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3),
        (int, np.int64(3)),
        (int, np.uint8(3)),
        (float, 3),
        (float, np.float32(0.5)),
        (float, np.int32(5)),
        (bool, np.bool_(False)),
        (WHOLE, math.inf),
        (WHOLE, 10.0),
        (INT | None, None),
        (str | Path, Path("x")),
        (Literal["a", 1], 1),
        (Sequence[int], [1, np.int64(2)]),
        (Sequence[int], (1, 2)),
        (Sequence[int], np.array([1, 2])),
        (list[str], ("a",)),
        (tuple[int, int], [1, 2]),
        (tuple[int, ...], ()),
        (Mapping[str, float], {"a": 1}),
        (Callable[[int], int], abs),
        (type[torch.nn.Module], torch.nn.Linear),
        (type[torch.nn.Module], functools.partial(torch.nn.Linear, bias=False)),
        (Callable[..., torch.nn.Module], lambda: torch.nn.Linear(1, 1)),
        (torch.Tensor | Sequence[float], torch.zeros(2)),
        (Any, object()),
    ],
)
def test_fitting_values_are_accepted(hint: Any, value: Any) -> None:
    check_value("Layer", "size", value, hint)


@pytest.mark.parametrize(
    ("hint", "value", "error", "accepted"),
    [
        (INT, True, TypeError, "a whole number"),
        (INT, np.bool_(True), TypeError, "a whole number"),
        (INT, "3", TypeError, "a whole number"),
        (INT, 3.0, TypeError, "a whole number"),
        (INT, math.nan, TypeError, "a whole number"),
        (INT, torch.tensor(3), TypeError, "a whole number"),
        (INT, np.array(3), TypeError, "a whole number"),
        (INT, None, TypeError, "a whole number"),
        (INT, 0, ValueError, "at least 1"),
        (Size, 10**12, ValueError, "at most 16777216"),
        (INT | None, "x", TypeError, "a whole number or None"),
        (INT | None, -1, ValueError, "at least 1"),
        (float, "1e-3", TypeError, "a number"),
        (float, math.nan, ValueError, "a number"),
        (float, np.float32("nan"), ValueError, "a number"),
        (float, True, TypeError, "a number"),
        (float, math.inf, ValueError, "finite"),
        (Annotated[float, Gt(0)], math.nan, ValueError, "above 0"),
        (WHOLE, 1.5, ValueError, "a whole number"),
        (WHOLE, math.nan, ValueError, "at least 0"),
        (bool, "no", TypeError, "True or False"),
        (bool, 0, TypeError, "True or False"),
        (bool | Literal["auto"], "on", ValueError, "True or False or 'auto'"),
        (Literal["none", "left"], "lefft", ValueError, r"one of 'none', 'left'.* Did you mean 'left'"),
        (str, 3, TypeError, "a string"),
        (Annotated[str, MinLen(1)], "", ValueError, "not empty"),
        (Sequence[str], "abc", TypeError, "a list or tuple"),
        (Sequence[INT], [1, 0], ValueError, "each item is at least 1"),
        (Annotated[Sequence[int], MinLen(1)], [], ValueError, "not empty"),
        (tuple[int, int], (1,), ValueError, "2 values"),
        (Mapping[str, float], [1], TypeError, "a mapping"),
        (Mapping[str, float], {"a": "1"}, TypeError, "each item is a number"),
        (Callable[[int], int], 3, TypeError, "."),
        (type[torch.nn.Module], torch.nn.Linear(1, 1), TypeError, "not an instance"),
        (type[torch.nn.Module], dict, TypeError, "a subclass of Module"),
        (torch.Tensor | Sequence[float], 0.9, TypeError, "Tensor"),
    ],
)
def test_other_values_are_refused(hint: Any, value: Any, error: type[Exception], accepted: str) -> None:
    with pytest.raises(error, match=f"Layer: size must be .*{accepted}") as raised:
        check_value("Layer", "size", value, hint)
    assert repr(value) in str(raised.value)


def test_class_argument_and_value_are_named_for_positions_keywords_and_subclasses() -> None:
    for make in (lambda: Layer(0), lambda: Layer(width=0), lambda: WideLayer(0, factor=3)):
        with pytest.raises(ValueError, match="Layer: width must be at least 1, got 0"):
            make()
    with pytest.raises(ValueError, match="Did you mean 'rmsnorm'"):
        functools.partial(Layer, norm="rmsnorn")(4)
    with pytest.raises(
        TypeError, match=r"Layer.__init__\(\) missing 1 required positional argument: 'width'"
    ):
        Layer()  # type: ignore[call-arg]
    assert Layer(np.int64(4), 0.1, others=3).width == 4


def test_the_signature_stays_and_instances_can_be_pickled_copied_and_compiled() -> None:
    assert list(inspect.signature(Layer).parameters)[:3] == ["width", "dropout", "norm"]
    assert inspect.getfullargspec(Layer.__init__).kwonlydefaults == {
        "norm": None,
        "bias": True,
        "sizes": (1,),
        "later": None,
    }
    layer = Layer(4)
    x = torch.ones(2, 4)
    for same in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        torch.testing.assert_close(same(x), layer(x))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


def test_gin_sets_and_requires_checked_arguments() -> None:
    with pytest.raises(RuntimeError, match=r"ConfiguredLayer.* not provided in config: \['width'\]"):
        ConfiguredLayer()
    gin.bind_parameter("ConfiguredLayer.width", 4)
    assert ConfiguredLayer().width == 4
    gin.bind_parameter("ConfiguredLayer.bias", "no")
    with pytest.raises(TypeError, match="ConfiguredLayer: bias must be True or False, got 'no'"):
        ConfiguredLayer()


@dataclass
class Settings:
    """Fields with ranges."""

    epochs: WHOLE = 10
    name: str = "run"
    price: "Decimal | None" = None


def test_fields_of_a_dataclass_and_of_its_subclasses_are_checked() -> None:
    class Renamed(Settings):
        extra: "Decimal[int]"  # type: ignore[type-arg] # is never evaluated

    check_fields(Renamed(epochs=math.inf))
    with pytest.raises(ValueError, match="Renamed: epochs must be at least 0, got -1"):
        check_fields(Renamed(epochs=-1))
    with pytest.raises(TypeError, match="Settings: name must be a string, got 3"):
        check_fields(Settings(name=3))  # type: ignore[arg-type]
