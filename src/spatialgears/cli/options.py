"""Options that several commands share, each defined once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spatialgears.errors import InputError, require_new

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.config import Config
    from spatialgears.validate.donors import CellsFrom

_INPUT, _CONFIG, _ANSWERS = "Input", "Configuration", "Optional analyses"

#: Bytes of an .h5ad file or .zarr folder beyond which its counts stay on disk.
LARGE_FILE = 5e8

#: What tables that commands write begin with.
TABLES = (b"cell,gears_", b"spot,x,y,", b"Barcode,", b"cell_id,group")

#: Bytes that the libraries take: of address space, and of data.
LEAST_ROOM = {"-v": 2.0e9, "-d": 1.0e9}


def _option(panel: str, flag: str, what: str | None, text: str, **more: Any) -> Any:
    """An option in a panel of the help; ``what`` to put there, None for a flag."""
    return typer.Option(flag, metavar=what, rich_help_panel=panel, help=text, **more)


_input, _config, _answer = (partial(_option, panel) for panel in (_INPUT, _CONFIG, _ANSWERS))

St = Annotated[
    list[str],
    _input(
        "--st", "PATH", "A slide: .h5ad, .zarr, 10x .h5 or folder, Space Ranger folder, .csv; once per slide."
    ),
]
Sc = Annotated[str | None, _input("--sc", "PATH", "The cells to place.")]
Donor = Annotated[
    list[str] | None,
    _input(
        "--donor",
        "NAME",
        "The donor of a slide, once per --st and in their order; the same name for slides of one donor. By default as "
        "the slide says (donor in .uns or .obs), and otherwise each slide is a donor of its own.",
    ),
]
From = Annotated[
    str | None,
    _input(
        "--cells-from",
        "same-donor|other-donor",
        "Whether the cells are of a donor of the slides. Those of another have wider radii, and a fit averages them with "
        "similar cells. By default the donor in the cells' .uns or .obs decides; if unknown, radii are as for another donor.",
    ),
]
Layer = Annotated[str | None, _input("--layer", "NAME", "Layer with the counts, or raw, or X (the default).")]
ScLayer = Annotated[str | None, _input("--sc-layer", "NAME", "The same for the cells, where it differs.")]
StGenes = Annotated[
    str | None, _input("--st-genes", "COLUMN", "Column of .var that names the slides' genes.")
]
ScGenes = Annotated[str | None, _input("--sc-genes", "COLUMN", "Column of .var that names the cells' genes.")]
Coordinates = Annotated[
    list[str] | None,
    _input(
        "--coordinates",
        "TABLE|X,Y",
        "Table of barcode, x, y, or two columns of .obs (x,y); once for all slides or once per slide "
        "(- for one that has its own).",
    ),
]
_SPLIT = "Split a file of several sections into one slide each: by a column of .obs, or auto."
Split = Annotated[str | None, _input("--split", "COLUMN|auto", _SPLIT)]
_TYPES = "Column of the cells' .obs with cell types, for the report; by default one named so, like cell_type."
Types = Annotated[str | None, _input("--types", "COLUMN", _TYPES)]
_GENES = "Genes that the report can show besides those the model uses; repeatable."
Genes = Annotated[list[str] | None, _input("--genes", "GENE,...", _GENES)]
_REGIONS = (
    "Column of the slides' .obs with regions or layers: gives each cell its region, with a probability."
)
Regions = Annotated[str | None, _answer("--regions", "COLUMN", _REGIONS)]
_IMPUTE = "Genes of the cells to predict at the spots, written to imputed.h5ad; repeatable."
Impute = Annotated[list[str] | None, _answer("--impute", "GENE,...", _IMPUTE)]
_ABUNDANCE = "Count cells of each type (--types) at the spots, written to abundance.h5ad."
Abundance = Annotated[bool, _answer("--abundance", None, _ABUNDANCE)]
_COMPARE = (
    "Column of the cells' .obs that names two samples: which types (--types) lie elsewhere in the second?"
)
Compare = Annotated[str | None, _answer("--compare", "COLUMN", _COMPARE)]
SpatialKey = Annotated[str, _input("--spatial-key", "KEY", "Key of .obsm with the coordinates.")]
Transpose = Annotated[
    bool,
    _input(
        "--transpose",
        None,
        "Tables of counts have genes in rows. Needed only if no slide is given, or if names of spots and genes do not "
        "show it.",
    ),
]
Normalised = Annotated[bool, _input("--normalised", None, "Accept values that are not counts.")]
_PRESET = "quick, default, paper-small or paper; {} if none is named."
Preset = Annotated[str | None, _config("--preset", "NAME", _PRESET.format("default"), show_default=False)]
DemoPreset = Annotated[str | None, _config("--preset", "NAME", _PRESET.format("quick"), show_default=False)]
ConfigFile = Annotated[Path | None, _config("--config", "FILE", "JSON file with the values that differ.")]
Set = Annotated[list[str] | None, _config("--set", "STAGE.KEY=VALUE", "Set one value; repeatable.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result of gears.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to standard output.")]


def load_config(preset: str | None, config: Path | None, assignments: Sequence[str] | None) -> Config:
    """The configuration asked for: a preset or a file, then single values on top."""
    from spatialgears.config import Config

    if preset and config:
        raise InputError(
            "Expected --preset or --config, found both.",
            'Name the preset in the file: {"preset": "quick", ...}.',
        )
    base = Config.from_file(config) if config else Config.preset(preset or "default")
    return base.with_values(assignments or [])


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths that are not there before anything heavy is imported."""
    missing = [path for path in paths if not is_there(path)]
    if missing:
        raise InputError(
            f"There is no file or folder {', '.join(path[:200] for path in missing)}.",
            "Check the paths given to --st and --sc.",
        )


def cells_from(text: str | None) -> CellsFrom | None:
    """What ``--cells-from`` says, refused before anything is read."""
    if text not in (None, "same-donor", "other-donor"):
        raise InputError(
            f"Expected --cells-from same-donor or other-donor, found {text}.",
            "Leave it out if it is not known.",
        )
    return text  # type: ignore[return-value]


def gene_list(texts: Sequence[str] | None) -> list[str]:
    """The genes that ``--genes`` names, separated by commas."""
    return [gene for text in texts or () for gene in map(str.strip, text.split(",")) if gene]


def is_there(path: str | Path) -> bool:
    """Whether a file or folder can be found under this name, whatever the name is."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user's home, a null byte
        return False


def is_large(path: str) -> bool:
    """Whether a file or folder is better left on disk and read in parts."""
    place = Path(path).expanduser()
    files = place.rglob("*") if place.suffix.lower() == ".zarr" and place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file()) > LARGE_FILE


def require_output(
    out: Path, suffixes: Sequence[str], inputs: Sequence[str | Path], *, overwrite: bool = False
) -> None:
    """Refuse to write over an input, into one, over a file, unless it is to be replaced, or where nothing can be."""
    if out.suffix not in suffixes:
        raise InputError(
            f"-o expects a {' or '.join(suffixes)} file, found {out}.",
            f"For example: -o {out.with_suffix(suffixes[0])}",
        )
    target = require_apart(out, inputs)
    if target.exists() and not _ours(target):
        raise InputError(
            f"{out} is there already, and was not made by gears.", "Name another file, or move this one away."
        )
    require_new(out, overwrite=overwrite)
    require_writable(target)


def require_writable(target: Path, *, option: str = "-o") -> None:
    """Refuse a path below which nothing can be written."""
    folder = next(parent for parent in target.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"Cannot write to {folder}: {error.strerror}.", f"Choose another place with {option}."
        ) from None


def require_apart(out: Path, inputs: Sequence[str | Path], *, option: str = "-o", kind: str = "file") -> Path:
    """Refuse an output that is an input, or lies inside one; the output's whole path."""
    target = out.expanduser().resolve()
    for path in inputs:
        source = Path(path).expanduser().resolve()
        if target == source or source in target.parents:
            raise InputError(
                f"{option} is the input {path}, or inside it; inputs are never written to.",
                f"Choose another {kind}.",
            )
    return target


def _ours(path: Path) -> bool:
    """Whether a file is one that was written here: a report, a table of places, or cells with places."""
    import h5py

    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        if path.suffix == ".csv":
            from spatialgears.reconstruction import COLUMNS

            with path.open("rb") as file:
                return file.readline().strip().startswith((",".join(COLUMNS).encode(), *TABLES))
        if path.suffix == ".html":
            return b"spatialgears report" in path.read_bytes()
        with h5py.File(path) as file:
            own = isinstance(file.get("uns", getlink=True), h5py.HardLink)  # no link to another file
            return own and "gears" in file["uns"]
    except OSError:
        return False


def require_room() -> None:
    """Refuse a limit on memory under which not even the libraries can be loaded, before they are."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {"-v": resource.RLIMIT_AS, "-d": resource.RLIMIT_DATA}
    for flag, kind in limits.items():
        soft, _ = resource.getrlimit(kind)
        least = LEAST_ROOM[flag]
        if soft != resource.RLIM_INFINITY and soft < least:
            raise InputError(
                f"The memory of this process is limited to {soft / 1e9:.2g} GB (ulimit {flag}); loading the libraries "
                f"alone takes up to {least / 1e9:.2g} GB.",
                f"Raise the limit: ulimit {flag} unlimited",
            )


@dataclass(frozen=True)
class Reading:
    """How ``--st`` and ``--sc`` are to be understood, in the order in which commands have these options."""

    layer: str | None = None
    sc_layer: str | None = None
    st_genes: str | None = None
    sc_genes: str | None = None
    coordinates: Sequence[str] | None = None
    transpose: bool = False
    split: str | None = None
    spatial_key: str = "spatial"
    donors: Sequence[str] | None = None


AS_THEY_ARE = Reading()


@dataclass(frozen=True)
class Inputs:
    """Slides and cells as read, what to call them in messages, and the donors that were named, one per slide."""

    slides: list[AnnData]
    cells: AnnData | None
    names: list[str]
    donors: Sequence[str] | None = None


def read_inputs(
    st: Sequence[str], sc: str | None, how: Reading = AS_THEY_ARE, *, backed: bool = False
) -> Inputs:
    """Read what ``--st`` and ``--sc`` name; layers are put in ``.X``, gene columns in ``.var_names``."""
    from spatialgears.io import read
    from spatialgears.io.tables import is_table
    from spatialgears.validate.sections import split_slides

    places: list[str | None] = [*how.coordinates] if how.coordinates else [None]
    if len(places) == 1:
        places *= len(st)
    if len(places) != len(st):
        raise InputError(
            f"Expected --coordinates once, or once per slide ({len(st)} times); found {len(places)}.",
            "Give them in the order of the slides.",
        )
    slides = [
        read(
            path,
            layer=how.layer,
            genes=how.st_genes,
            coordinates=_places(place),
            transpose=how.transpose,
            backed=backed,
        )
        for path, place in zip(st, places, strict=True)
    ]
    paths = [*st, *([] if sc is None else [sc])]
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):  # files of the same name are told apart by their paths
        names = paths
    slides, titles, donors = split_slides(
        slides, names[: len(st)], how.split, spatial_key=how.spatial_key, donors=how.donors
    )
    cells = None
    if sc is not None:
        large = backed or is_large(sc)
        cells = read(
            sc, layer=how.sc_layer or how.layer, genes=how.sc_genes, transpose=how.transpose, backed=large
        )
        genes = slides[0].var_names if slides else cells.var_names
        turned = len(genes.intersection(cells.obs_names)) > len(genes.intersection(cells.var_names))
        if is_table(Path(sc)) and slides and turned:
            typer.echo(f"{sc} has genes in rows: it was turned.", err=True)
            cells = cells.T.copy()
    return Inputs(slides, cells, [*titles, *names[len(st) :]], donors)


def _places(text: str | None) -> str | list[str] | None:
    """A file as it is; otherwise ``x,y`` as two columns. ``-`` says that a slide has places of its own."""
    if text in (None, "-"):
        return None
    if is_there(text) or "," not in text:
        return text
    return [part.strip() for part in text.split(",")]
