"""Public sets for benchmarks, by name: their files below a data folder, and what is placed from what.

Every set comes as a :class:`Tissue`; what would give a cell's place away is kept out of ``cells`` (but not
its name, which says it in some sets).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import anndata as ad
import numpy as np
from anndata import AnnData
from scipy import sparse

from spatialgears.datasets.tissue import Tissue
from spatialgears.errors import InputError
from spatialgears.runtime.seeds import numpy_rng

ROOT_VARIABLE = "SPATIALGEARS_DATA"


@dataclass(frozen=True)
class Entry:
    """One set of the registry.

    Attributes
    ----------
    title
        What it is, in a line.
    sections
        File of each section, below the data folder, by name. One of them is held out, unless ``cells`` is
        given.
    cells
        File of the cells to place, if they are not a section.
    heldout
        The section that is placed if the user names none; None with no ``cells``: a third of the only
        section's spots.
    labels
        Columns of the cells' ``obs`` kept, and the names they get; the labels of the truth.
    counts
        Whether the values are raw counts.
    places
        Whether the places of the cells are known.
    """

    title: str
    sections: dict[str, str]
    cells: str | None = None
    heldout: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    counts: bool = True
    places: bool = True


def _her2st(patient: str) -> Entry:
    sections = {f"{patient}{i}": f"her2st/{patient}{i}.h5ad" for i in (1, 2, 3)}
    title = (
        f"HER2-positive breast tumour, patient {patient}, three ST sections: place the spots of one from two"
    )
    return Entry(title, sections, heldout=f"{patient}3", labels=(("label", "label"),))


#: The sets by name; ``docs/data.md`` says where their files are from.
REGISTRY: dict[str, Entry] = {
    "mouse_embryos": Entry(
        "mouse embryos, seqFISH cells of two embryos in two slices each (Lohoff 2022): place one slice from the others",
        {name: f"mouse_atlas/{name}_seqfish_counts.h5ad" for name in ("E1z2", "E1z5", "E3z2", "E3z5")},
        heldout="E3z2",
        labels=(("celltype", "cell_type"),),
    ),
    "mouse_atlas": Entry(
        "mouse embryo, seqFISH cells placed from their pseudo-Visium spots (Lohoff 2022)",
        {"E1z2": "mouse_atlas/E1z2_stem_pseudovisium.h5ad"},
        cells="mouse_atlas/E1z2_seqfish_counts.h5ad",
        labels=(("celltype", "cell_type"),),
    ),
    **{f"her2st_{patient}": _her2st(patient) for patient in "ADE"},
    "dlpfc": Entry(
        "human cortex, three Visium sections of one donor: place the spots of one from two",
        {name: f"dlpfc/{name}.h5ad" for name in ("151673", "151674", "151675")},
        heldout="151675",
        labels=(("layer", "layer"),),
    ),
    "starmap_mpfc": Entry(
        "mouse cortex, STARmap cells of two animals: place the cells of one from the other",
        {
            name[9:12]: f"starmap_mpfc/{name}.h5ad"
            for name in ("20180417_BZ5_control", "20180419_BZ9_control")
        },
        heldout="BZ9",
        labels=(("cell_type", "cell_type"), ("layer", "layer")),
    ),
    "seqfish_tasic": Entry(
        "mouse cortex, dissociated cells of known dissected layer (Tasic 2016) placed from seqFISH cells",
        {"seqfish": "seqfish_tasic/seqfish_cortex.h5ad"},
        cells="seqfish_tasic/tasic_scRNA_no_coords.h5ad",
        labels=(("cell_type", "cell_type"), ("layer_dissected", "layer")),
        counts=False,
        places=False,
    ),
    "drosophila": Entry(
        "fly embryo, dissociated cells (Karaiskos 2017) placed from an in situ atlas of 60 genes (BDTNP), which is not counts",
        {"atlas": "drosophila/bdtnp_60_genes.h5ad"},
        cells="drosophila/dissociated_cells.h5ad",
        counts=False,
        places=False,
    ),
    "hscc": Entry(
        "human squamous cell carcinoma, one ST section, normalised values: place a third of its spots",
        {"P10_rep2": "hscc/P10_ST_rep2.h5ad"},
        labels=(("cluster_seurat", "cluster"),),
        counts=False,
    ),
}


def load(name: str, root: str | Path | None = None, *, heldout: str | None = None) -> Tissue:
    """Load a benchmark set as slides, cells and truth.

    Parameters
    ----------
    name
        A key of ``REGISTRY``: mouse_embryos, mouse_atlas, her2st_A, her2st_D, her2st_E, dlpfc, starmap_mpfc,
        seqfish_tasic, drosophila, hscc.
    root
        The folder the sets lie in; by default what the environment variable ``SPATIALGEARS_DATA`` says.
    heldout
        The section whose spots (or cells) are to be placed, for sets of several sections; the others are
        the slides.

    Returns
    -------
    Tissue
        ``uns["X_kind"]`` of slides and cells says what the values are where the file does, and
        ``REGISTRY[name].counts`` whether they are raw counts. ``truth`` of seqfish_tasic has labels only,
        that of drosophila nothing.

    Raises
    ------
    InputError
        Unknown name or section, no data folder, a missing or unreadable file, or one that does not hold
        what it should.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.load("mouse_atlas", "path/to/data")  # doctest: +SKIP
    """
    if name not in REGISTRY:
        raise InputError(f"No data set is called {name!r}.", f"Choose one of {', '.join(REGISTRY)}.")
    entry, folder = REGISTRY[name], _root(root)
    if entry.heldout is None and heldout is not None:
        raise InputError(
            f"{name} has no section to hold out, found heldout={heldout!r}.", "Leave heldout out."
        )
    heldout = heldout or entry.heldout
    if heldout is not None and heldout not in entry.sections:
        raise InputError(
            f"{name} has no section {heldout!r}.", f"Choose heldout from {', '.join(entry.sections)}."
        )
    sections = {key: _read(folder / path, counts=entry.counts) for key, path in entry.sections.items()}
    if entry.cells:
        target = _read(folder / entry.cells, counts=entry.counts, spatial=entry.places)
    elif heldout:
        target = sections.pop(heldout)
    else:
        ((key, section),) = sections.items()
        sections[key], target = _split(section)
    return Tissue(list(sections.values()), *_hide(target, entry.labels))


def _root(root: str | Path | None) -> Path:
    given = root or os.environ.get(ROOT_VARIABLE)
    if not given:
        raise InputError(
            "The folder of the benchmark sets is not known.",
            f"Pass root= (--data FOLDER), or set the variable {ROOT_VARIABLE}.",
        )
    folder = Path(given)
    if not folder.is_dir():
        raise InputError(
            f"There is no data folder {folder}.", f"Check root= (--data) or the variable {ROOT_VARIABLE}."
        )
    return folder


def _read(path: Path, *, counts: bool, spatial: bool = True) -> AnnData:
    """One file, refused if it does not hold what the registry says."""
    advice = (
        f"Check that the folder given by root= (--data) or {ROOT_VARIABLE} holds the set; docs/data.md says where each file "
        "is from."
    )
    if not path.is_file():
        raise InputError(f"There is no file {path}.", advice)
    try:
        adata = ad.read_h5ad(path)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} cannot be read as .h5ad: {error}.", advice) from None
    adata.X = sparse.csr_matrix(adata.X)
    values = adata.X.data
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"{path} holds values that are negative or not finite.", advice)
    if counts and (values != np.rint(values)).any():
        raise InputError(f"{path} should hold raw counts, but has values that are not integers.", advice)
    if not adata.var_names.is_unique or not adata.obs_names.is_unique:
        raise InputError(f"{path} has names of genes or cells that occur twice.", advice)
    if spatial:
        coords = np.asarray(adata.obsm.get("spatial", np.empty((0, 0))), dtype=np.float64)
        if coords.shape != (adata.n_obs, 2) or not np.isfinite(coords).all():
            raise InputError(f'{path} should have finite obsm["spatial"] ({adata.n_obs}, 2).', advice)
    return adata


def _split(section: AnnData) -> tuple[AnnData, AnnData]:
    """Two thirds of the spots to learn from, a third to place; always the same ones."""
    order = numpy_rng(0, "heldout spots").permutation(section.n_obs)
    cut = section.n_obs // 3
    return section[np.sort(order[cut:])].copy(), section[np.sort(order[:cut])].copy()


def _hide(target: AnnData, labels: tuple[tuple[str, str], ...]) -> tuple[AnnData, AnnData]:
    """The cells with nothing but counts and type, and the truth: labels, and coordinates where known."""
    known = {new: old for old, new in labels if old in target.obs}
    truth = AnnData(obs=target.obs[list(known.values())].set_axis(list(known), axis=1))
    if "spatial" in target.obsm:
        truth.obsm["spatial"] = np.asarray(target.obsm["spatial"], dtype=np.float64)
    cells = AnnData(
        target.X,
        obs=truth.obs[[column for column in known if column == "cell_type"]].copy(),
        var=target.var.copy(),
        uns={key: target.uns[key] for key in ("X_kind", "source", "licence") if key in target.uns},
    )
    return cells, truth
