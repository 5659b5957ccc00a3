from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from spatialgears.plotting import palette
from spatialgears.report import ReportContent, ReportSlide
from spatialgears.report.encode import as_script, payload


def array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), dtype)


def fields(data: dict) -> dict[str, dict]:
    return {field["name"]: field for field in data["fields"]}


def places(part: dict) -> np.ndarray:
    return np.stack([array(part["x"], "<f4"), array(part["y"], "<f4")], axis=1)


def order_of(data: dict) -> np.ndarray:
    return np.array([int(name.split()[1]) for name in data["cells"]["names"].split("\n")])


def numbers(field: dict, bits: int) -> np.ndarray:
    codes = array(field["codes"], f"<u{bits // 8}")
    return np.where(codes == 2**bits - 1, np.nan, field["low"] + codes * field["step"])


@pytest.fixture
def gene_values(unpacked):
    def values(data: dict, name: str, slide: int | None = None) -> np.ndarray:
        genes = data["genes"]
        i = genes["names"].index(name)
        text = genes["cells"][i] if slide is None else genes["slides"][slide][i]
        low, step, *_ = (genes["ends"] if slide is None else genes["slideEnds"])[i]
        n = data["drawn"] if slide is None else len(places(data["slides"][slide]))
        codes = unpacked(text, n).astype(float)
        return np.where(codes == 255, np.nan, low + codes * step)

    return values


def test_every_array_keeps_its_cells(content, gene_values):
    data = payload(content, max_cells=1000)
    order = order_of(data)
    assert sorted(order) == list(range(400))
    np.testing.assert_allclose(places(data["cells"]), content.coords[order], rtol=1e-6)
    found = fields(data)
    gene = np.asarray(content.genes["Mbp"])
    np.testing.assert_allclose(gene_values(data, "Mbp"), gene[order], atol=np.ptp(gene) / 500)
    uncertainty = numbers(found["uncertainty, 90% radius"], 16)
    np.testing.assert_allclose(uncertainty, content.uncertainty[order], atol=1e-5)
    types = found["cell_type"]
    names = np.array([*types["names"], None], dtype=object)
    codes = array(types["codes"], "<u1").astype(int)
    assert (names[np.where(codes == 255, -1, codes)] == content.obs["cell_type"][order]).all()


def test_values_that_are_not_numbers_are_missing(gene_values):
    values = np.array([0.0, np.nan, 4.0, np.inf])
    content = ReportContent("t", np.zeros((4, 2)), names=[f"c {i}" for i in range(4)], genes={"g": values})
    data = payload(content, max_cells=9)
    got = gene_values(data, "g")[np.argsort(order_of(data))]
    np.testing.assert_allclose(got, [0, np.nan, 4, np.nan], rtol=1e-4)


def test_constant_and_empty_columns_survive():
    obs = {"one": np.ones(3), "gap": np.full(3, np.nan), "none": np.array([None] * 3, dtype=object)}
    found = fields(payload(ReportContent("t", np.zeros((3, 2)), obs=obs), max_cells=9))
    assert numbers(found["one"], 16).tolist() == [1, 1, 1]
    assert np.isnan(numbers(found["gap"], 16)).all()
    assert found["none"]["names"] == []
    json.loads(as_script(found))


def test_a_label_has_one_colour_on_cells_and_slides():
    slide = ReportSlide("s", np.zeros((2, 2)), obs={"part": pd.Categorical(["rim", "core"])})
    content = ReportContent("t", np.zeros((3, 2)), obs={"part": ["core", "core", "other"]}, slides=[slide])
    field = fields(payload(content, max_cells=9))["part"]
    assert field["names"] == ["core", "other", "rim"]
    assert field["colors"] == list(palette.CATEGORICAL[:3])
    assert array(field["slides"][0], "<u1").tolist() == [2, 0]


def test_numbers_of_cells_that_are_labels_on_a_slide_are_shown_on_the_cells():
    slide = ReportSlide("s", np.zeros((2, 2)), obs={"cluster": np.array(["WM", "L1"])})
    content = ReportContent("t", np.zeros((3, 2)), obs={"cluster": np.array([1, 2, 3])}, slides=[slide])
    field = fields(payload(content, max_cells=9))["cluster"]
    assert field["kind"] == "numbers" and field["slides"] == [None]


def test_a_column_called_domain_stays_beside_the_domains():
    slide = ReportSlide("s", np.zeros((2, 2)), obs={"domain": pd.Categorical(["cortex", "medulla"])})
    content = ReportContent(
        "t", np.zeros((3, 2)), obs={"domain": ["cortex"] * 3}, domains=["0", "0", "1"], slides=[slide]
    )
    found = fields(payload(content, max_cells=9))
    assert found["domain (obs)"]["names"] == ["cortex", "medulla"] and found["domain (obs)"]["slides"][0]
    assert found["domain"]["names"] == ["0", "1"] and not any(found["domain"]["slides"])


def test_labels_that_spots_resemble_stand_in_for_those_a_slide_lacks():
    labels = pd.Categorical(["b", "a"])
    slide = ReportSlide(
        "s", np.zeros((2, 2)), resembled={"type": labels, "part": labels}, obs={"part": ["c", "c"]}
    )
    content = ReportContent(
        "t", np.zeros((2, 2)), obs={"type": ["a", "b"], "part": ["a", "c"]}, slides=[slide]
    )
    found = fields(payload(content, max_cells=9))
    assert found["type"]["resembled"] and array(found["type"]["slides"][0], "<u1").tolist() == [1, 0]
    measured = found["part"]
    assert not measured["resembled"] and measured["names"][array(measured["slides"][0], "<u1")[0]] == "c"


def test_slides_say_how_the_cells_lie_on_them(content):
    first, second = payload(content, max_cells=9)["slides"]
    pose = content.slides[0].pose
    assert first["pose"] == [*pose.matrix.ravel(), *pose.shift] and second["pose"] is None
    assert first["pitch"] > 0


def test_genes_that_are_left_out_are_counted():
    content = ReportContent("t", np.zeros((2, 2)), genes={"g": np.ones(2)}, n_genes=2000)
    assert "1 of 2,000 genes" in payload(content, max_cells=9)["genes"]["note"]
    whole = ReportContent("t", np.zeros((2, 2)), genes={"g": np.ones(2)})
    assert payload(whole, max_cells=9)["genes"]["note"] == ""


def test_the_map_begins_with_domains_where_all_columns_are_true_or_false():
    content = ReportContent("t", np.zeros((2, 2)), obs={"outside": [True, False]}, domains=["0", "1"])
    assert list(fields(payload(content, max_cells=9))) == ["domain", "outside"]


def test_slides_share_a_scale_of_their_own_and_may_lack_a_gene(gene_values):
    slides = [
        ReportSlide("a", np.zeros((2, 2)), {"g": np.array([0.0, 100.0])}),
        ReportSlide("b", np.zeros((1, 2)), {"g": np.array([50.0])}),
        ReportSlide("c", np.zeros((1, 2))),
    ]
    content = ReportContent("t", np.zeros((2, 2)), genes={"g": np.array([0.0, 1.0])}, slides=slides)
    data = payload(content, max_cells=9)
    np.testing.assert_allclose(gene_values(data, "g", 0), [0, 100], rtol=1e-4)
    np.testing.assert_allclose(gene_values(data, "g", 1), [50], atol=0.3)
    assert data["genes"]["slides"][2] == [None] and data["genes"]["ends"][0][3] == 1


def test_too_many_cells_are_sampled_alike_for_every_array(content, gene_values):
    data = payload(content, max_cells=50)
    order = order_of(data)
    assert data["total"] == 400 and len(set(order)) == 50
    np.testing.assert_allclose(places(data["cells"]), content.coords[order], rtol=1e-6)
    assert len(gene_values(data, "Mbp")) == 50 == data["drawn"]
    assert payload(content, max_cells=50) == data


def test_cells_without_names_are_known_by_their_row(content):
    data = payload(replace(content, names=None), max_cells=1000)
    rows = array(data["cells"]["rows"], "<u4")
    np.testing.assert_allclose(places(data["cells"]), content.coords[rows], rtol=1e-6)


def test_script_text_cannot_end_its_element(hostile):
    text = as_script({hostile: [hostile, "<!--", "\u2028"]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {hostile: [hostile, "<!--", "\u2028"]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_script([float("nan")])


def test_history_becomes_one_figure_per_phase():
    history = {
        "geometry": {"a/loss": [1.0, float("nan")], "b/loss": [-1.0]},
        "expression": {"epoch": [5], "loss": [1]},
    }
    parts = payload(ReportContent("t", np.zeros((2, 2)), history=history), max_cells=9)["history"]
    assert [part["title"] for part in parts] == ["geometry, a", "geometry, b", "expression"]
    assert [part["axis"] for part in parts] == ["step", "step", "epoch"]
    assert [part["log"] for part in parts] == [True, False, True]
    assert parts[0]["curves"][0]["y"] == [1.0, None]
