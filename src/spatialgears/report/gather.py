"""Gather what the report shows, from the model, the positions and the inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.analysis import annotate, lookup
from spatialgears.analysis.subject import Subject, subject_of
from spatialgears.errors import InputError
from spatialgears.metrics import canonical
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline import radii
from spatialgears.pipeline import self_check as selfcheck
from spatialgears.plotting.tissue import tissue_of
from spatialgears.plotting.values import domain_names
from spatialgears.reconstruction import OF_PLACES, Reconstruction
from spatialgears.report import answers as given
from spatialgears.report import findings
from spatialgears.report.content import ReportContent, ReportSlide, Section, SelfCheck
from spatialgears.report.encode import DOMAIN, drawn
from spatialgears.report.expression import Expression
from spatialgears.report.kept_out import kept_out
from spatialgears.report.profiles import seen_profiles
from spatialgears.report.resemblance import resembling
from spatialgears.report.verdict import numbers, verdict
from spatialgears.storage.model_folder import versions
from spatialgears.text import number
from spatialgears.validate import input_names, slide_titles, title_of
from spatialgears.validate.counts import row_totals, to_csr

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.analysis.answers import Answers
    from spatialgears.model import GEARS

logger = logging.getLogger(__name__)

SHOWN_COLUMNS, MOST_CATEGORIES = 12, 60
MOST_CELLS, MOST_SPOTS = 200_000, 50_000  # that are drawn, of the cells and of each slide
MOST_VALUES = 100_000_000  # cells and spots times genes that are read to be drawn


def report_content(
    model: GEARS,
    placed: Reconstruction,
    cells: AnnData,
    *,
    slides: Sequence[AnnData] = (),
    names: Sequence[str] = (),
    spatial_key: str = "spatial",
    types: str | None = None,
    genes: Sequence[str] = (),
    answers: Answers | None = None,
    command: str = "",
) -> ReportContent:
    """Everything the report shows; what the arguments are, :func:`~spatialgears.write_report` says."""
    titles = slide_titles(input_names(names, len(slides))[: len(slides)])
    title = title_of(names[len(slides)]) if len(names) > len(slides) else "cells"
    seed, checks = model.config.seed, model.fitted_.checks
    subject = subject_of(
        placed,
        cells,
        slides,
        titles=titles,
        panel=model.panel_,
        spatial_key=spatial_key,
        types=types,
        seed=seed,
    )
    spots = [np.asarray(slide.obsm[spatial_key], dtype=np.float64)[:, :2] for slide in slides]
    total, totals = row_totals(cells.X), [row_totals(slide.X) for slide in slides]
    obs = _columns(cells.obs, labels=subject.types)
    shown = [slide.obs[[name for name in obs if name in slide.obs]] for slide in slides]
    obs, *on_slides = _shared_labels([obs, *(_columns(one, labels=subject.types) for one in shown)])
    if subject.types in obs:
        subject.cells.obs[subject.types] = obs[subject.types][subject.rows]
    # the distance of neighbouring spots in RMS radii of their slide, the mean of the slides
    spacing = float(np.mean([spot_pitch(canonical(coords)) for coords in spots])) if slides else None
    kinds = None if subject.types is None else obs.get(subject.types)
    if not placed.annotated:
        placed = annotate.annotated(placed, subject, types=kinds, seed=seed)
    domains = _domains(placed)
    subject.cells.obs["gears_domain"] = None if domains is None else domains[subject.rows]
    sections = findings.sections(
        subject,
        partial(seen_profiles, model, subject, cells, seed=seed),
        laid=placed.laid,
        trusted=_trusted(model, placed),
    )
    if answers is not None:
        asked = given.sections(answers, placed, cells, slides, titles=titles, spatial_key=spatial_key)
        sections = [*sections[:1], *asked, *sections[1:]]
        region = answers.questions.regions
        if region is not None and lookup.slot(region) in placed.obs:
            obs[f"region: {region}"] = placed.obs[lookup.slot(region)]
    poses = {one.slide: one.pose for one in placed.laid}
    searched = list(
        dict.fromkeys([*genes, *(gene for gene in model.panel_.genes if gene in cells.var_names)])
    )
    rows = np.sort(drawn(cells.n_obs, MOST_CELLS))
    some = [np.sort(drawn(len(one), MOST_SPOTS)) for one in spots]
    kept = searched[: max(1, MOST_VALUES // max(len(rows) + sum(map(len, some)), 1))]
    level, words = verdict(placed.cell_check, checks, placed.outside, warnings=placed.warnings)
    held = radii.words(model.fitted_, placed.diagnostics)
    if held and held not in placed.warnings:
        words += f" {held}"
    resembled = _resembled(subject, {subject.types: kinds, DOMAIN: domains})
    return ReportContent(
        title=f"{title}: {number(cells.n_obs, 'cell')} placed"
        + (f" from {number(len(slides), 'slide')}" if slides else ""),
        coords=placed.coords,
        names=list(placed.obs_names),
        verdict=words,
        level=level,
        numbers=numbers(placed, checks, n_spots=list(map(len, spots)), spacing=spacing),
        warnings=_called(
            [*placed.warnings, *(one.caution for one in sections if one.caution)],
            dict(zip(names, [*titles, title], strict=False)),
        ),
        inputs=[
            *(_row(*one, "spots") for one in zip(titles, slides, totals, strict=True)),
            _row(title, cells, total, "cells"),
        ],
        checks=kept_out(placed.cell_check, titles),
        self_check=[SelfCheck(one.title, one.words, one.model, one.reference) for one in checks],
        obs=obs | {"outside the slides' range": placed.outside},
        genes=_expression(cells, kept, total, rows, n=cells.n_obs),
        n_genes=len(searched),
        uncertainty=placed.radius90,
        domains=domains,
        domains_note=_domains_note(domains, placed),
        slides=[
            ReportSlide(
                one,
                spots[i][some[i]],
                _expression(slides[i], kept, totals[i], some[i]),
                {name: values[some[i]] for name, values in on_slides[i].items()},
                {name: labels[i][some[i]] for name, labels in resembled.items()},
                poses.get(one),
                y_down="spatial" in slides[i].uns,
                tissue=tissue_of(slides[i], spatial_key=spatial_key),
            )
            for i, one in enumerate(titles)
        ],
        history=_curves(model.history_),
        sections=sections + _embedding(model.embedding_),
        command=command,
        config=model.config.to_json(),
        versions=versions(),
        spacing=spacing,
    )


def _called(texts: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    """Warnings, once each, in which inputs are not called by their paths but as everywhere in the report."""
    for path in sorted(titles, key=len, reverse=True):
        texts = [text.replace(path, titles[path]) for text in texts]
    return list(dict.fromkeys(texts))


def _trusted(model: GEARS, placed: Reconstruction) -> bool:
    """Whether single positions may be read: by the check on cells, and where there is none, by held-out spots."""
    cells = placed.cell_check
    if cells is not None and cells.checked:
        return cells.verdict in ("good", "fair")
    return selfcheck.trusted(model.fitted_.checks)


def _embedding(facts: Mapping[str, Any]) -> list[Section]:
    """Which embedding was used, how well it preserves position, and how it mixes the sources; nothing without one."""
    if not facts:
        return []
    guard, mixing, reach = facts["guard"], facts["mixing"], facts["reach"]
    names = {"encoder": "trained encoder", "reference": "components of weighted genes"}
    verb = "were" if guard["choice"] == "reference" else "was"
    chosen = f"The {names[guard['choice']]} {verb} used" + (
        ", as the configuration asks." if guard["forced"] else "."
    )
    text = (
        "Spots and cells are compared in an embedding that has not seen coordinates. To choose it, held-out spots, and whole "
        "slides if there are several, were placed at their most similar spots in each embedding. The table shows the rank "
        f"correlation of distances; it is no check of the model, which does more. {chosen} In this embedding, with each slide "
        f"and the cells as groups, neighbour entropy is {mixing['neighbour_entropy']:.2f} and iLISI {mixing['ilisi']:.2f} (1: "
        "perfectly mixed). Other mixing scores in this report are for the networks' input, with spots and cells as groups."
    )
    if reach:
        text += (
            " Each cell is then moved towards its most similar spots near the predicted position. Held-out spots chose the "
            f"search radius: {reach:.2g} RMS radii of the slide."
        )
    elif reach is not None:
        text += " Held-out spots are placed best by the networks alone, so cells are not moved towards similar spots."
    rows = [
        {
            "embedding": title,
            **{f"{over}, by nearest spots alone": f"{score:.2f}" for over, score in guard[key].items()},
        }
        for key, title in names.items()
    ]
    return [Section("How spots and cells are compared", text, table=rows)]


def _row(name: str, adata: AnnData, total: np.ndarray, what: str) -> dict[str, object]:
    return {
        "input": name,
        "what": what,
        "number": f"{adata.n_obs:,}",
        "genes": f"{adata.n_vars:,}",
        "median total": f"{np.median(total):,.0f}",
    }


def _columns(obs: pd.DataFrame, *, labels: str | None = None) -> dict[str, Any]:
    """Columns worth colouring by: labels of few kinds, first of all ``labels``, even of numbers, and numbers."""
    chosen: dict[str, Any] = {}
    for name, values in sorted(obs.items(), key=lambda item: item[0] != labels):
        if str(name).startswith(OF_PLACES):  # of these places or of others
            continue
        flag = pd.api.types.is_bool_dtype(values)
        number = pd.api.types.is_numeric_dtype(values) and not flag and name != labels
        if number or 1 < values.nunique(dropna=True) <= MOST_CATEGORIES:
            complete = flag and name != labels and not values.isna().any()
            kept = values if number else values.astype(bool if complete else object)
            chosen[str(name)] = kept.to_numpy()
        if len(chosen) == SHOWN_COLUMNS:
            break
    return chosen


def _shared_labels(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same columns, labels as categories that all parts share: each has one colour in every figure."""
    found = [dict(part) for part in parts]
    for name in parts[0]:
        texts = {
            i: pd.Series(part[name]).map(str, na_action="ignore")
            for i, part in enumerate(found)
            if name in part and part[name].dtype == object
        }
        kinds = sorted({kind for text in texts.values() for kind in text.dropna().unique()})
        for i, text in texts.items():
            found[i][name] = pd.Categorical(text, categories=kinds)
    return found


def _expression(
    adata: AnnData, genes: Sequence[str], total: np.ndarray, rows: np.ndarray, *, n: int | None = None
) -> Expression:
    """Log-normalised expression of those of the genes that are there once; ``total`` (n,) is that of all genes."""
    column = pd.Series(np.arange(adata.n_vars), np.asarray(adata.var_names, str))
    column = column[~column.index.duplicated(keep=False)]
    genes = [gene for gene in genes if gene in column.index]
    values = to_csr(adata.X, column[genes].to_numpy(np.int64), rows)
    if np.all(values.data >= 0) and np.all(values.data == np.round(values.data)):
        depth = np.median(np.maximum(total, 1)) / np.maximum(total[rows], 1)
        values = sparse.diags(depth.astype(np.float32)) @ values
        values.data = np.log1p(values.data)
    return Expression(genes, values, rows=None if n is None or len(rows) == n else rows, n=n)


def _resembled(subject: Subject, labels: Mapping[str | None, Any]) -> dict[str, list[pd.Categorical]]:
    """Per column of labels, the label that each spot of each slide resembles most by expression."""
    found: dict[str, list[pd.Categorical]] = {}
    if not subject.slides:
        return found
    try:
        cells, *slides = (lookup.log_expression(one) for one in (subject.cells, *subject.slides))
    except InputError as error:
        logger.info("spots have no colours of cells: %s", error)
        return found
    for name, values in labels.items():
        if name is None or values is None:
            continue
        parts = [resembling(cells, pd.Categorical(values[subject.rows]), spots) for spots in slides]
        if kept := [part for part in parts if part is not None]:
            found[name] = kept
    return found


def _domains(placed: Reconstruction) -> pd.Categorical | None:
    """Spatial domains by their names, the largest first, where there are any."""
    if annotate.DOMAIN not in placed.obs:
        return None
    names = domain_names(placed.uns[annotate.DOMAIN]["table"])
    return pd.Categorical.from_codes(placed.obs[annotate.DOMAIN].codes, names)


def _domains_note(domains: pd.Categorical | None, placed: Reconstruction) -> str:
    """What the domains are, and which of them could as well be a random draw of cells."""
    if domains is None:
        return ""
    words = "Groups of cells that lie together (Leiden on the 15 nearest neighbours), the largest first. "
    if (left := int((domains.codes < 0).sum())) > 0:
        words += f"Cells outside the slides' range ({left:,}) belong to none. "
    table = placed.uns[annotate.DOMAIN]["table"]
    if "noise" not in table:
        return f"{words}Whether expression differs between them could not be tested."
    noise = list(domains.categories[table["noise"].to_numpy(bool)])
    if not noise:
        return f"{words}In each, expression differs from that of cells drawn at random."
    few = len(noise) == 1
    return (
        f"{words}In {'domain' if few else 'domains'} {', '.join(noise)} expression is no different from that of cells drawn "
        f"at random: {'it is' if few else 'they are'} probably only noise."
    )


def _curves(history: Mapping[str, Sequence[float]]) -> dict[str, dict[str, list[float]]]:
    """``phase/name`` to phase and name."""
    curves: dict[str, dict[str, list[float]]] = {}
    for key, values in history.items():
        phase, _, name = key.partition("/")
        curves.setdefault(phase, {})[name] = list(values)
    return curves
