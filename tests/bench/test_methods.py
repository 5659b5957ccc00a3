from __future__ import annotations

import pytest

from spatialgears.bench import methods
from spatialgears.bench.peers import PEERS, PeerOptions
from spatialgears.bench.worker import resolve
from spatialgears.config import Config
from spatialgears.errors import InputError

SETUP = PeerOptions()


@pytest.mark.parametrize("name", methods.ABLATIONS)
def test_every_ablation_changes_the_default(name):
    method = methods.ours(ablation=name)
    assert Config.preset("default").with_values(method.options["values"]) != Config.preset("default")


def test_groups_stand_for_their_methods():
    kinds = [method.kind for method in methods.choose(["default", "references", "peers"], SETUP)]
    assert kinds.count("ours") == 1 and kinds.count("reference") == len(methods.REFERENCES)
    assert kinds.count("peer") == len(PEERS)


def test_a_method_named_twice_runs_once():
    assert len(methods.choose(["default", "default", "random", "references"], SETUP)) == 1 + len(
        methods.REFERENCES
    )


def test_unknown_methods_are_refused_with_the_names_there_are():
    with pytest.raises(InputError, match="kNN on PCA"):
        methods.choose(["magic"], SETUP)


def test_a_function_in_a_file_is_a_method(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def place(slides, cells, *, seed):\n    return seed\n")
    (method,) = methods.choose([f"{path}:place"], SETUP)
    assert method.name == "mine:place" and resolve(method.entry)([], None, seed=7) == 7
    before = method.identity()
    assert method.identity() == before
    path.write_text("def place(slides, cells, *, seed):\n    return seed + 1\n")
    assert method.identity() != before, "an edited method is another one"


@pytest.mark.parametrize("method", methods.REFERENCES.values(), ids=lambda method: method.name)
def test_references_exist(method):
    assert callable(resolve(method.entry))


def test_what_decides_a_result_is_in_the_identity():
    assert methods.ours("quick").identity() != methods.ours("default").identity()
    assert methods.ours(values=["seed=1"]).identity() != methods.ours().identity()


def test_a_changed_default_is_another_method(monkeypatch):
    before = methods.ours().identity()
    assert before == methods.ours().identity()
    monkeypatch.setattr(Config, "preset", lambda name: Config(seed=9))
    assert methods.ours().identity() != before
