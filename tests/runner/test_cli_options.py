"""What is typed on the command line: literals, key=value pairs, the nearest name."""

import pytest

from amago.cli.options import UsageProblem, nearest, parse_arguments, parse_literal, suggestion


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-0.5", -0.5),
        ("true", True),
        ("False", False),
        ("none", None),
        ("(1, 2)", (1, 2)),
        ("random", "random"),
        ("'4'", "4"),
        ("rgb_array", "rgb_array"),
    ],
)
def test_a_literal_becomes_its_value_and_other_text_stays_text(text: str, value: object) -> None:
    assert parse_literal(text) == value
    assert type(parse_literal(text)) is type(value)


def test_arguments_are_cut_at_the_first_equals_sign() -> None:
    assert parse_arguments(["size=3", "start_location=(0, 1)", "name=a=b"], "--env-arg") == {
        "size": 3,
        "start_location": (0, 1),
        "name": "a=b",
    }


@pytest.mark.parametrize("text", ["size", "=3", "size=", ""])
def test_text_that_is_no_assignment_is_a_problem_of_its_option(text: str) -> None:
    with pytest.raises(UsageProblem, match="KEY=VALUE") as caught:
        parse_arguments([text], "--env-arg")
    assert caught.value.option == "--env-arg"


def test_a_key_given_twice_is_a_problem() -> None:
    with pytest.raises(UsageProblem, match="'size' is given twice"):
        parse_arguments(["size=3", "size=4"], "--env-arg")


def test_the_nearest_name_ignores_capitals_and_forgives_a_missing_ending() -> None:
    known = ["MetaFrozenLake", "RoomKeyDoor", "TMazeAltPassive"]
    assert nearest("metafrozenlake", known) == "MetaFrozenLake"
    assert nearest("RoomKyDoor", known) == "RoomKeyDoor"
    assert nearest("tmaze", known) == "TMazeAltPassive"
    assert nearest("Breakout", known) is None
    assert suggestion("Breakout", known) == ""
    assert suggestion("RoomKyDoor", known) == " Did you mean 'RoomKeyDoor'?"
