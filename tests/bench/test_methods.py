from __future__ import annotations

import pytest

from spatialgears.bench import methods
from spatialgears.bench.peers import PEERS, PeerOptions
from spatialgears.bench.worker import resolve
from spatialgears.config import Config
from spatialgears.errors import InputError

SETUP = PeerOptions()


def test_groups_stand_for_their_methods():
    kinds = [method.kind for method in methods.choose(["default", "references", "peers"], SETUP)]
    assert kinds.count("ours") == 1 and kinds.count("reference") == len(methods.REFERENCES)
    assert kinds.count("peer") == len(PEERS)


def test_every_peer_has_an_identity_with_or_without_an_adapter():
    found = [str(method.identity()) for method in methods.choose(["peers"], SETUP)]
    assert len(set(found)) == len(PEERS) and any("keras" in text and len(text) < 200 for text in found)


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


def test_what_determines_a_result_is_in_the_identity():
    assert methods.ours("quick").identity() != methods.ours("default").identity()
    changed = methods.ours("default", ["geometry.steps=7"])
    assert (
        changed.identity() != methods.ours().identity() and changed.name == "GEARS default, geometry.steps=7"
    )
    same = methods.ours("default", [f"geometry.steps={Config().geometry.steps}"])
    assert same.identity() == methods.ours().identity() and same.name == "GEARS default"


def test_values_are_for_presets():
    values = ["geometry.steps=7"]
    names = [method.name for method in methods.choose(["quick", "random"], SETUP, values=values)]
    assert names == ["GEARS quick, geometry.steps=7", "random"]
    with pytest.raises(InputError, match="random is none"):
        methods.choose(["random"], SETUP, values=values)
    with pytest.raises(InputError, match="Use --seeds"):
        methods.choose(["quick"], SETUP, values=["seed=3"])


def test_a_row_of_other_values_is_not_taken_for_a_present_one():
    method = methods.ours()
    stored = Config(seed=2, threads=1).model_dump(mode="json")
    assert method.gave({"info": {}}) and method.gave({"info": {"config": stored}})
    stored["geometry"]["a field that is gone"] = 1
    assert method.gave({"info": {"config": stored}})
    stored["geometry"]["steps"] += 1
    assert not method.gave({"info": {"config": stored}})
    del stored["geometry"]["steps"]  # a field that came later
    assert not method.gave({"info": {"config": stored}})
