"""Tests whose questions one job answers, see ``questions.py``."""

from __future__ import annotations

import pytest

from tests.conftest import Launch, Run
from tests.faults.questions import BEGIN_S, EACH_S, Answer, Jobs, asked_by


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test the time of the job that it may be the first to want."""
    for item in items:
        if asked_by(item):
            item.add_marker(pytest.mark.timeout(2 * BEGIN_S + 20 * EACH_S))


@pytest.fixture(scope="session")
def jobs(request: pytest.FixtureRequest, launch: Launch, mpirun: Run) -> Jobs:
    """The jobs of all tests that are run."""
    return Jobs(request.session.items, launch, mpirun)


@pytest.fixture
def answers(request: pytest.FixtureRequest, jobs: Jobs) -> list[Answer]:
    """Answers to what a test `asks`."""
    return [jobs.answer(one) for one in asked_by(request.node)]


@pytest.fixture
def answer(answers: list[Answer]) -> Answer:
    """The only one."""
    (found,) = answers
    return found
