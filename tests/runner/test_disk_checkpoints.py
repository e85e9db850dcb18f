"""The replay buffer at checkpoints: a resumed run finds the files that its checkpoint knew."""

import warnings

import pytest

from amago.utils import AmagoWarning


def test_files_of_the_last_checkpoint_outlive_their_deletion_until_the_next_one(
    make_dataset, fill, numbers
) -> None:
    dataset = make_dataset(dset_max_size=2)
    fill(dataset.fifo_folder, 2)
    dataset.on_end_of_collection(None)
    dataset.state_dict()
    fill(dataset.fifo_folder, 2, first=2)
    dataset.on_end_of_collection(None)
    on_hold = dataset.fifo_folder.parent / "on_hold"
    assert numbers(dataset) == {2, 3}
    assert len(list(on_hold.iterdir())) == 2
    dataset.state_dict()
    assert len(list(on_hold.iterdir())) == 2, "the new checkpoint may not be on disk yet"
    dataset.on_end_of_collection(None)
    assert not list(on_hold.iterdir())


def test_a_resumed_run_draws_from_the_files_of_its_checkpoint(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=3)
    fill(dataset.fifo_folder, 3)
    dataset.on_end_of_collection(None)
    state = dataset.state_dict()
    fill(dataset.fifo_folder, 2, first=3)
    dataset.on_end_of_collection(None)
    assert numbers(dataset) == {2, 3, 4}

    resumed = make_dataset(dset_max_size=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(state, later_files_of=["000"])
    assert numbers(resumed) == {0, 1, 2}
    assert len(list((resumed.fifo_folder.parent / "newer_than_checkpoint").iterdir())) == 2
    fill(resumed.fifo_folder, 2, first=3)
    resumed.on_end_of_collection(None)
    assert numbers(resumed) == {2, 3, 4}


def test_later_files_of_other_writers_stay(make_dataset, fill, numbers) -> None:
    dataset = make_dataset()
    fill(dataset.fifo_folder, 2)
    state = dataset.state_dict()
    fill(dataset.fifo_folder, 1, first=2)
    resumed = make_dataset()
    resumed.load_state_dict(state)
    assert numbers(resumed) == {0, 1, 2}


def test_files_that_are_gone_at_a_resume_are_warned_about(make_dataset, fill) -> None:
    dataset = make_dataset()
    paths = fill(dataset.fifo_folder, 2)
    state = dataset.state_dict()
    paths[0].unlink()
    with pytest.warns(AmagoWarning, match="1 of 2"):
        make_dataset().load_state_dict(state)


def test_a_checkpoint_that_lists_a_file_outside_the_buffer_is_refused(make_dataset, tmp_path) -> None:
    (tmp_path / "mine").write_text("mine")
    for name in ("../mine", "/mine"):
        with pytest.raises(ValueError, match="mine"):
            make_dataset().load_state_dict({"fifo": {"files": [name]}}, later_files_of=["000"])


def test_what_was_on_hold_at_a_checkpoint_is_removed_after_a_resume(make_dataset, fill, numbers) -> None:
    dataset = make_dataset(dset_max_size=2)
    fill(dataset.fifo_folder, 2)
    dataset.state_dict()
    fill(dataset.fifo_folder, 2, first=2)
    dataset.on_end_of_collection(None)
    state = dataset.state_dict()
    resumed = make_dataset(dset_max_size=2)
    resumed.load_state_dict(state, later_files_of=["000"])
    assert numbers(resumed) == {2, 3}
    resumed.state_dict()
    resumed.on_end_of_collection(None)
    assert not list((resumed.fifo_folder.parent / "on_hold").iterdir())


def test_a_process_without_edit_rights_resumes_without_moving_files(make_dataset, fill) -> None:
    main, other = make_dataset(dset_max_size=1), make_dataset(dset_max_size=1, edit=False)
    fill(main.fifo_folder, 3)
    state = main.state_dict()
    other.on_end_of_collection(None)
    other.load_state_dict({"fifo": {"files": []}}, later_files_of=["000"])
    assert len(list(main.fifo_folder.iterdir())) == 3
    main.on_end_of_collection(None)
    assert len(list(main.fifo_folder.iterdir())) == 1
    main.load_state_dict(state)
    assert len(list(main.fifo_folder.iterdir())) == 3
