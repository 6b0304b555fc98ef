"""Engines: local processes and a cluster, what they survive, and bad addresses."""

import socket
import sys

import pytest

from linkern.testing import UsageError
from linkern.testing.campaign import engine, outcomes
from linkern.testing.campaign.engine import engine_of
from linkern.testing.campaign.task import Unjudged
from tests.testing.campaign import played

LOST = Unjudged("lost", "not judged: its worker ended twice.")


@pytest.fixture
def results(monkeypatch):
    """Return the outcomes of tasks of `played`, by an engine."""
    monkeypatch.setattr(outcomes, "judged", played.judged)

    def of_engine(where, *tasks, jobs=2):
        with engine_of(where, jobs, 1) as one:
            answers = outcomes.outcomes(one, {x: played.task_of(x) for x in tasks})
            return {
                key: o if o == LOST else o.message.split(" in ")[0]
                for key, o in answers
            }

    return of_engine


def test_a_process_that_ends_costs_its_kernel_one_retry(results, tmp_path):
    once = f"ends_once {tmp_path / 'marker'}"
    assert results("processes", "answers", once, "ends", "also") == {
        "answers": "answers",
        "also": "also",
        once: "ends_once",
        "ends": LOST,
    }


def test_a_worker_of_a_cluster_that_ends_costs_its_kernel_one_retry(
    results, tmp_path, distributed
):
    worker = f"kills_its_worker_once {tmp_path / 'marker'}"
    tasks = ("answers", worker, "ends", "also")
    assert results("dask://", *tasks, jobs=1) == {
        "answers": "answers",
        "also": "also",
        worker: "kills_its_worker_once",
        "ends": LOST,
    }


def test_the_cluster_of_a_scheduler(results, distributed):
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, dashboard_address=":0"
    ) as cluster:
        where = cluster.scheduler_address.replace("tcp", "dask")
        assert results(where, "answers", "also", jobs=None) == {
            "answers": "answers",
            "also": "also",
        }


ADDRESSES = (
    "threads",
    "ray://",
    "dask:",
    "dask",
    "dask://host",
    "dask://host:port",
    "dask://:8786",
    "dask://host:8786/path",
    "tcp://host:8786",
)


# Numbers: a name of a library in a parameter would make it a test that needs one.
@pytest.mark.parametrize("where", ADDRESSES, ids=range(len(ADDRESSES)))
def test_addresses_that_cannot_be_one(where):
    with pytest.raises(UsageError, match=f'"dask://host:port", got "{where}"'):
        engine_of(where, None, 1)


def test_no_distributed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"install 'linkern\[distributed\]'"):
        engine_of("dask://", None, 1)


def test_a_scheduler_has_no_jobs():
    with pytest.raises(UsageError, match="--jobs is for processes of this machine"):
        engine_of("dask://localhost:8786", 2, 1)


def test_no_scheduler_answers(monkeypatch, distributed):
    monkeypatch.setattr(engine, "PATIENCE", 0.2)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        where = f"dask://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(UsageError, match=f"no scheduler answers at {where} within"),
            engine_of(where, None, 1),
        ):
            pass
