"""The one class users meet: fit on slides and cells, reconstruct, save, load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from spatialgears.config import AssemblyConfig, Config, Preset
from spatialgears.errors import GearsError, InputError, RunError
from spatialgears.expression.panel import Panel
from spatialgears.pipeline import cell_check, radii, self_check
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.cost import predict_cost, require_memory
from spatialgears.pipeline.fit import fit_model
from spatialgears.pipeline.fitted import Fitted
from spatialgears.pipeline.kept_out import check_cells
from spatialgears.pipeline.noise import WARNING as NOISE
from spatialgears.pipeline.place import Placement, place
from spatialgears.pipeline.pose import OnSlide, Pose
from spatialgears.pipeline.prepare import Prepared, prepare
from spatialgears.pipeline.schema import check_facts, expected_tensors
from spatialgears.pipeline.self_check import SelfCheck
from spatialgears.reconstruction import Reconstruction
from spatialgears.runtime.processes import is_first
from spatialgears.runtime.progress import Progress, shown
from spatialgears.runtime.threads import threads
from spatialgears.storage import model_folder as store
from spatialgears.text import number
from spatialgears.validate import read_other_genes, validate_cells
from spatialgears.validate.batches import warn_batches
from spatialgears.validate.donors import CellsFrom, whose_cells
from spatialgears.validate.order import row_order
from spatialgears.validate.sampling import sample_cells, validate_sampled

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)


class GEARS:
    """Reconstruct where dissociated cells lived, from spatial transcriptomics slides of the same kind of tissue.

    Parameters
    ----------
    config
        What decides the result, or the name of a preset.

    Attributes
    ----------
    panel_
        Genes used, the most spatial first, and their weights.
    history_
        Training curves by name, ``"<phase>/<loss>"``.
    checks_
        The check on cells by kept-out genes, then how well spots were placed by models trained without them.
    counts_
        Whether it was fitted on counts, and not on normalised values.
    embedding_
        Scores of stage A's embedding: how well it preserves position, and how it mixes slides and cells.
    warnings_
        Warnings about the inputs.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=500)
    >>> model = sg.GEARS(sg.Config.preset("quick")).fit(tissue.slides, tissue.cells)  # doctest: +SKIP
    >>> model.reconstruct(tissue.cells).to_adata(tissue.cells)  # doctest: +SKIP
    """

    def __init__(self, config: Config | Preset = "default") -> None:
        self.config = config if isinstance(config, Config) else Config.preset(config)
        self._fitted: Fitted | None = None

    def __repr__(self) -> str:
        if self._fitted is None:
            return "GEARS, not fitted"
        return (
            f"GEARS fitted on {number(len(self._fitted.slides), 'slide')} and {number(len(self.panel_.genes), 'gene')}; "
            "self-check: " + (", ".join(f"{one.title} {one.verdict}" for one in self.checks_) or "none")
        )

    def _repr_html_(self) -> str:
        """What a notebook shows of the model: what it was fitted on, the verdicts and the warnings."""
        if self._fitted is None:
            return f"<p>{escape(repr(self))}</p>"
        rows = {
            "fitted on": f"{number(len(self._fitted.slides), 'slide')}, {number(len(self.panel_.genes), 'gene')}",
            **{one.title: f"{one.verdict}. {one.words}" for one in self.checks_},
            **{f"warning {i}": text for i, text in enumerate(self.warnings_, start=1)},
        }
        cells = "".join(
            f'<tr><th style="text-align:left;vertical-align:top">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(words)}</td></tr>'
            for name, words in rows.items()
        )
        return f"<table><caption>GEARS</caption><tbody>{cells}</tbody></table>"

    def fit(
        self,
        slides: Sequence[AnnData] | AnnData,
        cells: AnnData,
        *,
        layer: str | None = None,
        spatial_key: str = "spatial",
        normalised: bool = False,
        names: Sequence[str] | None = None,
        donors: Sequence[str] | None = None,
        cells_from: CellsFrom | None = None,
        checkpoint: str | Path | None = None,
        progress: Progress | bool | None = None,
    ) -> Self:
        """Learn geometry from the slides, at the depth of the cells.

        Parameters
        ----------
        slides
            Spots with raw counts in ``.X`` (or ``layer``) and coordinates in ``obsm[spatial_key]``. Not modified.
        cells
            The cells to place, or others of the same experiment: raw counts. Not modified. Of more than 50,000, a random
            50,000 are used: a fit needs only their depth and composition.
        layer
            Where the counts are, if not in ``.X``.
        spatial_key
            Key of ``obsm`` with the coordinates of spots.
        normalised
            Accept values that are not counts. If only the slides have such values, as in situ atlases do, counts are
            drawn for them at rates matched to those of the cells.
        names
            What to call the inputs in messages, slides first.
        donors
            The donor of each slide; slides of one donor have the same name. By default as ``uns["donor"]`` or a column
            ``obs["donor"]`` of each slide says, and otherwise each slide is a donor of its own. With two or more donors, whole
            donors are left out to check the model and to calibrate radii.
        cells_from
            ``"same-donor"``, ``"other-donor"`` or ``"unknown"``: whether the cells are of the slides' donors. By default as
            a donor in their ``uns`` or ``obs`` tells. Cells of another donor are averaged with similar cells.
        checkpoint
            Folder for training checkpoints: an interrupted fit resumes from it.
        progress
            True shows it, False does not; by default it is shown on a terminal and in a notebook. A function is called along
            the way as ``progress(stage, done, total, values)``.

        Returns
        -------
        GEARS
            The model itself, fitted.

        Examples
        --------
        >>> import spatialgears as sg
        >>> tissue = sg.datasets.simulate_tissue(n_cells=500)
        >>> model = sg.GEARS(sg.Config.preset("quick")).fit(tissue.slides, tissue.cells)  # doctest: +SKIP
        """
        inputs = validate_sampled(
            [slides] if hasattr(slides, "obsm") else list(slides),
            cells,
            seed=self.config.seed,
            layer=layer,
            spatial_key=spatial_key,
            normalised=normalised,
            names=names,
            donors=donors,
            cells_from=cells_from,
        )
        prepared = prepare(inputs, self.config)
        require_memory(prepared.cost(self.config))
        _log_warnings([*prepared.warnings, *prepared.foreseen])
        return self.fit_prepared(prepared, checkpoint=checkpoint, progress=progress)

    def fit_prepared(
        self,
        prepared: Prepared,
        *,
        checkpoint: str | Path | None = None,
        progress: Progress | bool | None = None,
    ) -> Self:
        """Fit on inputs that were validated and prepared before: :meth:`fit` and ``gears run`` do this.

        Parameters
        ----------
        prepared
            What ``spatialgears.pipeline.prepare.prepare`` gave for this configuration.
        checkpoint, progress
            As for :meth:`fit`.

        Returns
        -------
        GEARS
            The model itself, fitted.

        Examples
        --------
        >>> from spatialgears.pipeline.prepare import prepare
        >>> model.fit_prepared(prepare(inputs, model.config))  # doctest: +SKIP
        """
        folder = None if checkpoint is None else Path(checkpoint)
        plan = prepared.cost(self.config).stages
        wide = self.config.geometry.wide
        with threads(self.config.threads, each=0 if wide else 1) as number, shown(progress, plan) as callback:
            self._fitted = fit_model(
                prepared, self.config, checkpoint=folder, workers=1 if wide else number, progress=callback
            )
        return self

    def reconstruct(
        self,
        cells: AnnData,
        *,
        layer: str | None = None,
        normalised: bool | None = None,
        cells_from: CellsFrom | None = None,
        assembly: AssemblyConfig | None = None,
        progress: Progress | bool | None = None,
    ) -> Reconstruction:
        """Place cells: those given to :meth:`fit` or others of the same kind, without fitting again.

        With several processes (``devices``) all of them must call it, with the same cells: each does a share.

        Parameters
        ----------
        cells
            Raw counts; genes the model does not know are ignored, a few of the model's may be missing. Not modified.
        layer
            Where the counts are, if not in ``.X``.
        normalised
            Whether the values are normalised, not counts; must agree with :meth:`fit`.
        cells_from
            ``"same-donor"``, ``"other-donor"`` or ``"unknown"``: whether the cells are of a donor of the slides. It decides
            the radii, which are wider for another donor; unknown counts as another. By default as a donor in ``uns`` or
            ``obs`` of the cells tells, and otherwise unknown.
        assembly
            Settings of the assembly, for example patches or more samples; by default those of the model.
        progress
            As for :meth:`fit`.

        Returns
        -------
        Reconstruction
            Coordinates, radii and samples, in the order of the cells; :meth:`Reconstruction.to_adata` writes them.

        Examples
        --------
        >>> import spatialgears as sg
        >>> rec = sg.GEARS.load("out/model").reconstruct(sg.read("more_cells.h5ad"))  # doctest: +SKIP
        """
        fitted, panel = self.fitted_, self.panel_
        whose = whose_cells(cells, fitted.donors, cells_from)
        if normalised is not None and normalised == fitted.raw and not (normalised and fitted.matched):
            learnt, given = ("counts", "normalised values") if fitted.raw else ("normalised values", "counts")
            raise InputError(
                f"The model was fitted on {learnt}, and normalised={normalised} says that the cells have {given}.",
                f"Give cells with {learnt}, or fit another model on {given}.",
            )
        counts, missing, notes = validate_cells(
            cells, panel.genes, panel.weights, layer=layer, normalised=not fitted.raw
        )
        others = fitted.others_of(*read_other_genes(cells, fitted.other_genes, layer=layer))
        rows = sample_cells(cells, seed=self.config.seed)
        more = () if others is None else (others.counts, others.genes)
        order = row_order(counts, panel.genes, *more)
        counts = counts[order]  # whatever the order in which they were given
        others = None if others is None else others[order]
        config = self.config.model_copy(update={"assembly": assembly}) if assembly else self.config
        require_memory(predict_cost(0, counts.shape[0], counts.shape[1], config, stored=counts.nnz))
        some = counts if rows is None else counts[np.flatnonzero(np.isin(order, rows))]
        known = fitted.inputs.are_of_the_fit(some)
        found = (
            []
            if known
            else fitted.inputs.warnings(some, config, missing=missing, raw=fitted.raw, notes=notes)
        )
        _log_warnings(found)
        with threads(config.threads, each=1) as workers, shown(progress) as callback:
            placed = place(
                fitted, counts, config, missing=missing, others=others, workers=workers, progress=callback
            )
            placed = placed.as_given(order, fitted)
            placed.diagnostics["threads"] = fitted.threads
            check = fitted.cell_check if known and fitted.shown_all(others) else None
            if check is None:
                check = check_cells(fitted, counts, config, missing=missing, others=others, progress=callback)
        placed = radii.calibrated(placed, fitted, check, cells_from=whose)
        found += self._warnings(placed, check, of_the_fit=known)
        found += warn_batches(cells.obs, placed.coords, "the cells", placed=True)
        if whose != "same-donor" and not radii.donors_left_out(fitted):
            found += filter(None, [radii.words(fitted, placed.diagnostics)])
        return Reconstruction(
            obs_names=np.asarray(cells.obs_names, dtype=str),
            cell_check=check,
            self_check=[check.sentence, *(one.sentence for one in fitted.checks)],
            warnings=list(dict.fromkeys(found)),
            laid=[
                OnSlide.of(
                    f"slide {i}",
                    Pose.between(spots, measured := slide.frame.to_slide(slide.coords[slide.given])),
                    measured,
                    coords=placed.coords,
                    outside=placed.outside,
                )
                for i, (spots, slide) in enumerate(
                    zip(placed.slides, fitted.given_slides, strict=True), start=1
                )
            ],
            **{field.name: getattr(placed, field.name) for field in fields(placed)},
        )

    def _warnings(self, placed: Placement, check: CellCheck, *, of_the_fit: bool) -> list[str]:
        """Warnings about the inputs, the model and the coordinates."""
        fitted = [text if of_the_fit else f"When the model was fitted: {text}" for text in self.warnings_]
        fitted += cell_check.warnings(check, spots=self_check.trusted(self.fitted_.checks))
        noise = bool(placed.diagnostics.get("noise"))
        fitted += [NOISE] if noise else []
        return fitted + self_check.warnings(
            self.fitted_.checks,
            morans_i=self.panel_.morans_i,
            donors=self.fitted_.donors,
            outside=None if noise else placed.outside,
            unfilled=placed.diagnostics.get("unfilled"),
            spaced=placed.diagnostics["spacing"] > 0,
            radius90=placed.radius90,
        )

    @property
    def fitted_(self) -> Fitted:
        """Everything that was learnt; an error says so if nothing was."""
        if self._fitted is None:
            raise GearsError(
                "This model has not been fitted. Call fit(slides=..., cells=...) or GEARS.load(folder) first."
            )
        return self._fitted

    @property
    def panel_(self) -> Panel:
        """Genes used and their weights."""
        return self.fitted_.panel

    @property
    def history_(self) -> dict[str, list[float]]:
        """Training curves by name."""
        return self.fitted_.history

    @property
    def checks_(self) -> list[CellCheck | SelfCheck]:
        """The check on cells by kept-out genes, then the self-checks on held-out spots and slides."""
        cells = self.fitted_.cell_check
        return [*([] if cells is None else [cells]), *self.fitted_.checks]

    @property
    def counts_(self) -> bool:
        """Whether it was fitted on counts, and not on normalised values."""
        return self.fitted_.raw

    @property
    def embedding_(self) -> dict[str, Any]:
        """Scores of stage A's embedding and of the reference, mixing of slides and cells; empty without an embedding."""
        return self.fitted_.embedding

    @property
    def warnings_(self) -> list[str]:
        """Warnings about the inputs."""
        return self.fitted_.warnings

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder of ``config.json``, ``weights.safetensors``, ``genes.txt`` and ``meta.json``.

        Parameters
        ----------
        folder
            Made if it is not there.
        overwrite
            Replace a model that is there; other files beside it stay, and a folder without a model is refused.

        Returns
        -------
        None
            The model is on disk.

        Examples
        --------
        >>> model.save("model")  # doctest: +SKIP
        """
        fitted = self.fitted_
        stored = store.StoredModel(self.config, fitted.tensors(), fitted.panel.genes, fitted.meta())
        store.save_model(folder, stored, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what :meth:`save` wrote. Nothing in the folder is executed.

        Parameters
        ----------
        folder
            What :meth:`save` or ``gears run`` wrote.

        Returns
        -------
        GEARS
            The fitted model.

        Examples
        --------
        >>> import spatialgears as sg
        >>> model = sg.GEARS.load("out/model")  # doctest: +SKIP
        """
        stored = store.load_model(folder, store.Schema(check_facts, expected_tensors))
        model = cls(stored.config)
        try:
            model._fitted = Fitted.restore(stored)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(
                f"meta.json and weights.safetensors in {folder} do not belong together: {error}"
            ) from None
        return model


def _log_warnings(texts: Sequence[str]) -> None:
    """Warnings go to the log as they are found; results hold them too."""
    for text in texts if is_first() else ():
        logger.warning("%s", text)
