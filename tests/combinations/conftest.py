"""Fixtures: a dataset with and one without lists of ids, and the runs of the array of combinations."""

import functools

import pytest

from tests.combinations.combined import covering, features_of, write_data
from tests.combinations.resumes import Unbroken, cut_of


@pytest.fixture(scope="session")
def datasets(tmp_path_factory):
    """Write the datasets; return their folders, by whether they have lists."""
    folder = tmp_path_factory.mktemp("data")
    return {lists: write_data(folder / f"{lists}", features_of(lists)) for lists in (False, True)}


@pytest.fixture(scope="session")
def unbroken(datasets, tmp_path_factory):
    """Return a function that trains a row of the array, given by its number, and returns its `Unbroken`; each is trained once."""
    array = covering()

    @functools.cache
    def trained(number):
        combination = array[number]
        every = cut_of(combination, number).begins
        return Unbroken(combination, datasets[combination.lists], tmp_path_factory.mktemp("combination"), every)

    return trained
