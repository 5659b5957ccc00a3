from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path

import anndata as ad
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import spatialgears as sg
from spatialgears.analysis import annotate, subject
from spatialgears.pipeline import radii
from spatialgears.plotting import palette
from spatialgears.report import findings, gather, report_content, write_page, write_report
from spatialgears.report.encode import payload
from spatialgears.report.gather import MOST_CATEGORIES, SHOWN_COLUMNS
from spatialgears.validate import slide_titles
from spatialgears.validate.donors import Donors


@pytest.fixture(scope="module")
def content(small_model, small_result, small_tissue):
    @cache
    def unchanged():
        return make()

    def make(**changes):
        given = {
            "slides": small_tissue.slides,
            "names": ["a/st_1.h5ad", "b/st_2.h5ad"],
            "command": "gears run",
        }
        cells = changes.pop("cells", small_tissue.cells)
        return report_content(small_model, small_result, cells, **(given | changes))

    return lambda **changes: make(**changes) if changes else unchanged()


def test_the_report_says_what_was_done(content, small_model, small_result):
    found = content()
    assert found.title == "cells: 150 cells placed from 2 slides"
    assert found.verdict and dict(found.numbers)["Cells placed"] == "150"
    assert [check.title for check in found.self_check] == [
        check.title for check in small_model.fitted_.checks
    ]
    assert [check.words for check in found.self_check] == [
        check.words for check in small_model.fitted_.checks
    ]
    assert [row["input"] for row in found.inputs] == ["st_1", "st_2", "cells"]
    assert set(small_model.warnings_) <= set(found.warnings)
    assert {"cell_type", "outside the slides' range"} <= set(found.obs)
    assert {"fold-0", "fold-1", "refiner"} <= set(found.history) and "loss" in found.history["refiner"]
    np.testing.assert_array_equal(found.uncertainty, small_result.radius90)


def test_inputs_are_left_as_they_are(content, small_tissue):
    before = small_tissue.cells.copy()
    content(command="gears run again")
    np.testing.assert_array_equal(small_tissue.cells.X.toarray(), before.X.toarray())
    assert list(small_tissue.cells.obs) == list(before.obs) and not small_tissue.cells.obsm


def test_genes_are_drawn_at_one_depth(content, small_model, small_tissue):
    found = content()
    gene = small_model.panel_.genes[0]
    counts = small_tissue.cells.X.toarray()
    total = counts.sum(1)
    column = counts[:, small_tissue.cells.var_names.get_loc(gene)]
    np.testing.assert_allclose(found.genes[gene], np.log1p(column * np.median(total) / total), rtol=1e-5)
    assert set(found.slides[0].genes) == set(found.genes) == set(small_model.panel_.genes)


def test_genes_besides_those_of_the_panel_can_be_asked_for(small_model, small_result, small_tissue, tmp_path):
    cells = small_tissue.cells.copy()
    cells.var_names = ["extra" if name == cells.var_names[-1] else name for name in cells.var_names]
    panel = [gene for gene in small_model.panel_.genes if gene in cells.var_names]
    found = report_content(small_model, small_result, cells, genes=["extra"])
    assert list(found.genes) == ["extra", *panel] and found.n_genes == len(panel) + 1
    with pytest.raises(sg.InputError, match=r"no gene 'extro'\.\n.*Did you mean 'extra'"):
        write_report(tmp_path / "r.html", small_model, small_result, cells=cells, genes=["extro"])


def test_the_map_is_in_the_pose_of_each_slide(content, small_model, small_result, small_tissue):
    """Spots among the cells, moved by the pose, are the spots of the slide."""
    for slide, spots, known in zip(content().slides, small_tissue.slides, small_result.slides, strict=True):
        own = slide.pose(known)
        gap = np.linalg.norm(own[:, None] - spots.obsm["spatial"][None], axis=2).min(1)
        assert gap.max() < 1e-3 * np.ptp(own)


def test_slides_with_an_image_have_their_y_axis_down(content, small_tissue):
    slides = [slide.copy() for slide in small_tissue.slides]
    slides[0].uns["spatial"] = {"library": {}}
    assert [slide.y_down for slide in content(slides=slides).slides] == [True, False]


def test_spots_without_labels_have_the_colour_of_cells_that_they_resemble(content):
    found = content()
    for slide in found.slides:
        assert set(slide.resembled) == {"cell_type", "domain"} and not slide.obs
        assert set(slide.resembled["cell_type"].categories) == set(found.obs["cell_type"].categories)


def test_genes_that_a_slide_lacks_or_repeats_are_left_out(content, small_model, small_tissue):
    lost, twice = small_model.panel_.genes[:2]
    slide = small_tissue.slides[0][:, small_tissue.slides[0].var_names != lost].copy()
    slide = ad.AnnData(slide.X, slide.obs, obsm=dict(slide.obsm), var=pd.DataFrame(index=slide.var_names))
    names = slide.var_names.tolist()
    names[names.index(small_model.panel_.genes[5])] = twice
    slide.var_names = names
    found = content(slides=[slide], names=["one"])
    assert not {lost, twice} & set(found.slides[0].genes) and lost in found.genes


def test_without_radii_none_are_promised(small_model, small_result, small_tissue):
    unknown = np.full(150, np.nan, np.float32)
    placed = replace(small_result, radius50=unknown, radius90=unknown)
    found = report_content(small_model, placed, small_tissue.cells)
    assert "nan" not in str(found.numbers) and "spacings" not in str(found.numbers)


def test_with_one_donor_the_first_lines_say_so(small_model, content, monkeypatch):
    assert "Radii are calibrated on donors that were left out" in content().verdict
    monkeypatch.setattr(small_model, "_fitted", replace(small_model.fitted_, donors=Donors(("a", "a"), True)))
    assert "the check on cells: the slides are of one donor" in content(command="gears").verdict


def test_what_warnings_say_of_radii_and_files_is_said_once_and_in_one_way(
    small_model, small_result, small_tissue
):
    held = radii.words(small_model.fitted_, small_result.diagnostics)
    placed = replace(small_result, warnings=[held, "data/both.h5ad: odd.", "both: odd."])
    names = ["data/both.h5ad", "b.h5ad", "c.h5ad"]
    found = report_content(small_model, placed, small_tissue.cells, slides=small_tissue.slides, names=names)
    assert held not in found.verdict and found.warnings[:2] == [held, "both: odd."]


def test_slides_of_one_name_are_told_apart():
    assert slide_titles(["a/st_1.h5ad", "b/st_2.h5ad"]) == ["st_1", "st_2"]
    assert slide_titles(["p1/outs", "p2/outs"]) == ["p1/outs", "p2/outs"]
    assert slide_titles(["x/p1/outs", "y/p1/outs"]) == ["1: outs", "2: outs"]
    assert slide_titles(["data/E9.5", "E10.5.h5ad", "a.csv.gz"]) == ["E9.5", "E10.5", "a"]


def test_columns_that_cells_and_slides_have_are_shown_on_both(content, small_tissue, monkeypatch):
    slides = [slide.copy() for slide in small_tissue.slides]
    slides[0].obs["cell_type"] = ["x", "y"] * (slides[0].n_obs // 2) + ["x"] * (slides[0].n_obs % 2)
    slides[0].obs["only here"] = np.arange(slides[0].n_obs)
    slides[0].obs["cell_type"] = slides[0].obs["cell_type"].replace("x", "a type before all others")
    drawn = []
    monkeypatch.setattr(
        findings.plotting,
        "registration",
        lambda cells, *_, color, **__: drawn.append(cells.obs[color]) or plt.gca(),
    )
    found = content(slides=slides)
    first, second = found.slides
    assert list(first.obs) == ["cell_type"] and not second.obs
    (field,) = [one for one in payload(found, max_cells=100)["fields"] if one["name"] == "cell_type"]
    map_colors = dict(zip(field["names"], field["colors"], strict=True))
    coded = palette.encode(drawn[0])
    assert "a type before all others" in map_colors and "a type before all others" not in coded.names
    assert {name: map_colors[name] for name in coded.names} == dict(
        zip(coded.names, coded.colors, strict=True)
    )


def test_columns_worth_colouring_by(small_model, small_result, small_tissue, tmp_path):
    cells = small_tissue.cells.copy()
    cells.obs["one kind"] = "same"
    cells.obs["barcode"] = [f"b{i}" for i in range(150)]
    cells.obs["number"] = np.arange(150.0)
    cells.obs["flag"] = np.arange(150) % 2 == 0
    cells.obs["cluster"] = pd.Categorical([f"c{i % 5}" for i in range(150)])
    for i in range(20):
        cells.obs[f"score {i}"] = np.random.default_rng(i).random(150)
    found = report_content(small_model, small_result, cells).obs
    assert {"number", "flag", "cluster", "cell_type"} <= set(found) and MOST_CATEGORIES < 150
    assert not {"one kind", "barcode"} & set(found) and len(found) == SHOWN_COLUMNS + 1
    assert found["flag"].dtype == bool  # the map does not begin with it
    path = tmp_path / "r.html"
    write_report(path, small_model, small_result, cells=cells, names=["data/liver.h5ad"])
    before = path.read_text()
    assert len(before) > 10_000 and "liver" in before
    with pytest.raises(sg.InputError, match=r"r\.html is there already.\n.*overwrite=True \(--overwrite\)"):
        write_report(path, small_model, small_result, cells=cells)
    assert path.read_text() == before
    write_report(path, small_model, small_result, cells=cells, overwrite=True)
    assert "liver" not in path.read_text()


def test_a_report_from_python_refuses_what_does_not_belong_together(
    small_model, small_result, small_tissue, tmp_path
):
    cells, path = small_tissue.cells, tmp_path / "r.html"
    with pytest.raises(sg.InputError, match="not those that were placed: 149 cells, and 150 places"):
        sg.write_report(path, small_model, small_result, cells=cells[1:])
    with pytest.raises(sg.InputError, match="no column 'kind'"):
        sg.write_report(path, small_model, small_result, cells=cells, types="kind")
    many = cells.copy()
    many.obs["kind"] = many.obs_names
    with pytest.raises(sg.InputError, match="'kind' has 150 values, more than the 60 types"):
        sg.write_report(path, small_model, small_result, cells=many, types="kind")
    with pytest.raises(sg.InputError, match="there is no layer 'raw counts'"):
        sg.write_report(path, small_model, small_result, cells=cells, layer="raw counts")
    bare = small_tissue.slides[0].copy()
    del bare.obsm["spatial"]
    with pytest.raises(sg.InputError, match="slide 1 has no obsm"):
        sg.write_report(path, small_model, small_result, cells=cells, slides=bare)
    assert not path.exists()


def test_a_report_of_a_layer_is_that_of_its_values(small_model, small_result, small_tissue, content):
    cells, slides = small_tissue.cells.copy(), [slide.copy() for slide in small_tissue.slides]
    for one in (cells, *slides):
        one.layers["counts"], one.X = one.X, None
    with pytest.raises(sg.InputError, match=r"\.X is empty; available are layer 'counts'"):
        sg.write_report("r.html", small_model, small_result, cells=cells, slides=slides)
    shown = []

    def write_page(path, found):
        shown.append(found)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spatialgears.report.write.write_page", write_page)
        sg.write_report("r.html", small_model, small_result, cells=cells, slides=slides, layer="counts")
    assert [one["median total"] for one in shown[0].inputs] == [
        one["median total"] for one in content().inputs
    ]


def test_types_that_are_numbers_are_labels(small_model, small_result, small_tissue):
    cells = small_tissue.cells.copy()
    cells.obs["cell_type"] = cells.obs["cell_type"].astype("category").cat.codes
    cells.obs["gears_domain"] = "of other places"
    found = report_content(small_model, small_result, cells, types="cell_type")
    (field,) = [one for one in payload(found, max_cells=100)["fields"] if one["name"] == "cell_type"]
    assert field["kind"] == "labels" and "gears_domain" not in found.obs


def test_the_types_that_were_named_come_first(small_model, small_result, small_tissue):
    cells = small_tissue.cells.copy()
    cells.obs = pd.concat(
        [
            pd.DataFrame(np.random.default_rng(0).random((150, 20)), cells.obs_names).add_prefix("qc"),
            cells.obs,
        ],
        axis=1,
    )
    cells.obs.insert(0, "sample", ["a", "b"] * 75)
    found = report_content(small_model, small_result, cells, types="cell_type")
    assert next(iter(found.obs)) == "cell_type"


def test_one_type_has_no_markers(small_model, small_result, small_tissue):
    cells = small_tissue.cells.copy()
    cells.obs["sorted"] = "T cell"
    found = report_content(small_model, small_result, cells, slides=small_tissue.slides, types="sorted")
    (section,) = [one for one in found.sections if one.title == "Markers near their cells"]
    assert "there is one type" in section.text and not section.png


def test_every_analysis_is_a_section(content, small_model):
    sections = list(content().sections)
    assert [section.title for section in sections] == [
        "Cells on the slide",
        "Do genes keep their patterns?",
        "Markers near their cells",
        "Which cell types are neighbours",
        "Do spots and cells mix?",
        "How spots and cells are compared",
    ]
    (kept_out,) = content().checks
    assert kept_out.title == "Do the cells show genes that the placing did not see?" and kept_out.png
    compared = sections.pop()
    assert [row["embedding"] for row in compared.table] == ["trained encoder", "components of weighted genes"]
    reach = small_model.embedding_["reach"]
    assert (f"search radius: {reach:.2g} RMS radii" if reach else "by the networks alone") in compared.text
    assert all(section.png.startswith(b"\x89PNG") and section.alt for section in sections)
    assert not any("could not" in section.text for section in sections)
    registered = sections[0]
    assert [row["Slide"] for row in registered.table] == ["st_1", "st_2"]
    assert all(row["Pose by matching alone"] for row in registered.table)
    assert "nan" not in " ".join(section.text for section in sections)


def test_the_documentation_goes_through_the_report(content, tmp_path):
    page = write_page(tmp_path / "report.html", content()).read_text()
    guide = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    explained = [title for line in re.findall("^## (.+)$", guide, re.M) for title in line.split(" / ")]
    assert explained == [unescape(title) for title in re.findall("<h2>(.+?)</h2>", page)]


def test_what_is_missing_is_said_with_the_way_to_give_it(content, small_tissue):
    cells = small_tissue.cells.copy()
    del cells.obs["cell_type"]
    (missing,) = [one for one in content(cells=cells).sections if one.title == "Not shown"]
    assert "cell_type" in missing.text and "--st" not in missing.text
    nothing, _ = content(cells=cells, slides=[], names=[]).sections
    assert nothing.title == "Not shown" and "--st" in nothing.text


def test_an_analysis_that_cannot_be_made_leaves_its_reason(content, monkeypatch):
    from spatialgears.errors import InputError

    def fail(subject):
        raise InputError("The tissue is too strange.")

    monkeypatch.setattr(findings, "patterns", fail)
    section = content(command="gears run again").sections[1]
    assert section.title == "Do genes keep their patterns?" and "too strange" in section.text


def test_what_speaks_against_the_result_stands_at_the_top(content, monkeypatch):
    for poor, told in ((2.0, True), (-2.0, False)):  # nothing, and anything, is good enough
        monkeypatch.setattr(findings, "POOR", poor)
        warnings = " ".join(content(command=str(poor)).warnings)
        assert ("do not read them in its frame" in warnings) == told
        assert ("hardly do among the placed cells" in warnings) == told


@pytest.mark.parametrize(
    ("changes", "trusted", "words"),
    [
        ({}, True, "can be read in the slide's own frame. A typical cell lies 2 spots from its match."),
        ({}, False, "agree roughly: trust the overall pose"),
        ({"residual": 3.4}, True, "not details. A typical cell lies 3 spots from its match."),
        ({"residual": 6.4}, True, "not details. A typical cell lies 6 spots from its match."),
        ({"coverage": 0.6}, True, "agree roughly"),
        ({"explained": 0.3}, True, "this pose may be wrong"),
        ({"residual": 0.4}, True, "one spot or less"),
    ],
)
def test_the_slides_frame_is_allowed_only_where_all_bears_it_out(changes, trusted, words):
    fit = {"explained": 0.9, "coverage": 0.9, "residual": 2.0} | changes
    found = findings.laid_words(fit, trusted=trusted)
    assert words in found and ("own frame" in found) == (trusted and found.startswith("The matches agree:"))


def test_mixing_that_got_worse_is_told():
    before = {"probe": 0.9, "neighbour_entropy_balanced": 0.5, "ilisi_balanced": 0.4}
    better = {"probe": 0.6, "neighbour_entropy_balanced": 0.8, "ilisi_balanced": 0.7}
    assert "mix less" not in findings.mixing_words(before, better)
    assert "By iLISI they mix less after" in findings.mixing_words(before, better | {"ilisi_balanced": 0.3})
    worse = findings.mixing_words(better, before)
    assert "By neighbour entropy and iLISI and the classifier they mix less" in worse
    assert "Neighbour entropy goes from 0.80 to 0.50" in worse
    assert "mix less" in findings.unmixed(better, before) and not findings.unmixed(before, better)
    assert not findings.unmixed(better, better | {"probe": 0.9, "ilisi_balanced": 0.69})  # one score of three
    assert not findings.unmixed(better, {key: value - 0.02 for key, value in better.items()})


def test_a_pose_that_matching_does_not_find_is_a_warning(content, monkeypatch):
    monkeypatch.setattr(findings, "POOR", -2.0)
    monkeypatch.setattr(findings, "pose_words", lambda pose, other: "mirrored")
    assert any("gives another pose (mirrored)" in text for text in content(command="again").warnings)
    monkeypatch.setattr(findings, "pose_words", lambda pose, other: "")
    assert not any("another pose" in text for text in content(command="once more").warnings)


def test_other_slides_than_the_models_are_not_taken_for_its_own(content, small_tissue):
    others = [slide.copy() for slide in small_tissue.slides]
    others[0].obsm["spatial"] = others[0].obsm["spatial"] * 1.3 + 400
    found = content(slides=others)
    sections = {one.title: one for one in found.sections}
    assert sections["Cells on the slide"].png and all(slide.pose for slide in found.slides)
    assert "not the slides that the model was fitted on" in sections["Do spots and cells mix?"].text


def test_odd_names_are_drawn_as_they_are(content, small_tissue):
    odd = "</script>$\\frac{x_1^ \u2028\"'"
    cells, slides = small_tissue.cells.copy(), [slide.copy() for slide in small_tissue.slides]
    cells.obs["cell_type"] = cells.obs["cell_type"].astype(str) + odd
    for one in (cells, *slides):
        one.var_names = [name + odd for name in one.var_names]
    sections = content(cells=cells, slides=slides, names=[odd.replace("/", ""), "b"]).sections
    drawn = [bool(section.png) for section in sections[:-1]]
    assert drawn == [True] * 4 + [False]  # of these genes the model knows none
    assert any(odd in str(row["Cell type"]) for row in sections[2].table)


def test_large_inputs_are_sampled_and_say_so(content, monkeypatch):
    monkeypatch.setattr(subject, "MOST_CELLS", 100)
    monkeypatch.setattr(subject, "MOST_GENES", 40)
    words = content(command="gears run again").sections[0].text
    assert "100 of the 150 cells" in words and "40 of the 60 genes" in words


def test_domains_are_in_order_and_judged(content, small_result):
    found = content()
    numbers = [name.split(":")[0] for name in found.domains.categories]
    assert numbers == [str(i) for i in range(len(numbers))]
    assert "Leiden" in found.domains_note


def test_a_domain_is_named_after_a_type_that_half_of_its_cells_have(small_result, small_tissue, small_model):
    looked_at = subject.subject_of(
        small_result,
        small_tissue.cells,
        [],
        titles=[],
        panel=small_model.panel_,
        spatial_key="",
        types=None,
        seed=0,
    )

    def names(types):
        return gather._domains(annotate.annotated(small_result, looked_at, types=types)).categories

    most = pd.Categorical(["this"] * 149 + ["that"])
    assert all(re.fullmatch(r"\d+: this \((100|9\d)%\)", name) for name in names(most))
    many = pd.Categorical([f"t{i % 5}" for i in range(150)])
    assert all(name.endswith(": mixed types") for name in names(many))
    assert "0" in names(None) and "0" in names(pd.Categorical([None] * 150))


def test_cells_without_types_are_coloured_by_domain_on_the_slide():
    obs = pd.DataFrame({"gears_domain": ["0"] * 3, "gears_radius50": [0.1] * 3}, index=list("abc"))
    bare = subject.Subject(ad.AnnData(obs=obs), [], [], None, np.ones(1), np.arange(3), 3, 1)
    assert findings._colour(bare) == "gears_domain"
    assert findings._colour(replace(bare, types="kind")) == "kind"
    bare.cells.obs["gears_domain"] = None
    assert findings._colour(bare) == "gears_radius50"


def test_cells_outside_have_no_domain(small_model, small_result, small_tissue):
    outside = np.arange(150) < 20
    found = report_content(small_model, replace(small_result, outside=outside), small_tissue.cells)
    np.testing.assert_array_equal(found.domains.isna(), outside)
    assert "(20) belong to none" in found.domains_note


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"cell_type": "ab", "leiden": "cd"}, "cell_type"),
        ({"leiden": "cd", "CellType_minor": "ab"}, "CellType_minor"),
        ({"leiden": "01"}, "leiden"),
        ({"cell_type": "aa"}, None),
        ({"batch": "ab"}, None),
    ],
)
def test_the_column_of_types_is_known_by_its_name(columns, found):
    obs = pd.DataFrame({name: list(kinds) * 5 for name, kinds in columns.items()})
    assert subject.types_column(obs) == found


@pytest.mark.parametrize(
    ("spacing", "words"), [(0.5, "gears reconstruct --set assembly.spacing=0"), (0.0, "this is expected")]
)
def test_empty_tissue_is_explained_by_how_cells_were_spaced(small_model, small_result, spacing, words):
    placed = replace(small_result, diagnostics={"unfilled": 0.4, "spacing": spacing})
    assert any(
        words in one for one in small_model._warnings(placed, small_result.cell_check, of_the_fit=True)
    )
    assert 0 < small_result.diagnostics["spacing"] <= small_model.config.assembly.spacing


def test_a_weak_self_check_is_a_warning(small_model, small_result, small_tissue, monkeypatch):
    check = small_model.fitted_.checks[0]
    weak = replace(check, model=check.model | {"spearman": 0.3})
    monkeypatch.setattr(small_model, "_fitted", replace(small_model._fitted, checks=[weak]))
    placed = small_model.reconstruct(small_tissue.cells)
    found = report_content(small_model, placed, small_tissue.cells)
    assert any("Weak self-check" in one for one in placed.warnings) and set(placed.warnings) <= set(
        found.warnings
    )
