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


def test_every_array_keeps_its_cells(content):
    data = payload(content, max_cells=1000)
    order = order_of(data)
    assert sorted(order) == list(range(400))
    np.testing.assert_allclose(places(data["cells"]), content.coords[order], rtol=1e-6)
    found = fields(data)
    gene = np.asarray(content.genes["Mbp"])
    np.testing.assert_allclose(numbers(found["Mbp"], 8), gene[order], atol=np.ptp(gene) / 500)
    uncertainty = numbers(found["uncertainty, 90% radius"], 16)
    np.testing.assert_allclose(uncertainty, content.uncertainty[order], atol=1e-5)
    types = found["cell_type"]
    names = np.array([*types["names"], None], dtype=object)
    codes = array(types["codes"], "<u1").astype(int)
    assert (names[np.where(codes == 255, -1, codes)] == content.obs["cell_type"][order]).all()


def test_values_that_are_not_numbers_are_missing():
    values = np.array([0.0, np.nan, 4.0, np.inf])
    content = ReportContent("t", np.zeros((4, 2)), names=[f"c {i}" for i in range(4)], genes={"g": values})
    data = payload(content, max_cells=9)
    got = numbers(fields(data)["g"], 8)[np.argsort(order_of(data))]
    np.testing.assert_allclose(got, [0, np.nan, 4, np.nan])


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


def test_the_map_begins_with_domains_where_all_columns_are_true_or_false():
    content = ReportContent("t", np.zeros((2, 2)), obs={"outside": [True, False]}, domains=["0", "1"])
    assert list(fields(payload(content, max_cells=9))) == ["domain", "outside"]


def test_slides_share_a_scale_of_their_own_and_may_lack_a_gene():
    slides = [
        ReportSlide("a", np.zeros((2, 2)), {"g": np.array([0.0, 100.0])}),
        ReportSlide("b", np.zeros((1, 2)), {"g": np.array([50.0])}),
        ReportSlide("c", np.zeros((1, 2))),
    ]
    content = ReportContent("t", np.zeros((2, 2)), genes={"g": np.array([0.0, 1.0])}, slides=slides)
    field = fields(payload(content, max_cells=9))["g"]
    ends = field["slideEnds"]
    first, second = (ends["low"] + array(text, "<u1") * ends["step"] for text in field["slides"][:2])
    np.testing.assert_allclose(first, [0, 100])
    np.testing.assert_allclose(second, [50], atol=0.3)
    assert field["slides"][2] is None and field["last"] == 1


def test_too_many_cells_are_sampled_alike_for_every_array(content):
    data = payload(content, max_cells=50)
    order = order_of(data)
    assert data["total"] == 400 and len(set(order)) == 50
    np.testing.assert_allclose(places(data["cells"]), content.coords[order], rtol=1e-6)
    assert len(array(fields(data)["Mbp"]["codes"], "<u1")) == 50
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
