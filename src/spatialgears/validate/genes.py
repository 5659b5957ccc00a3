"""Names of genes: unique within an input, shared between inputs, and why they are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from shlex import quote
from typing import NamedTuple

import numpy as np
import pandas as pd

from spatialgears.errors import InputError
from spatialgears.text import holds_control, number

#: More shared genes than this is a whole transcriptome; a targeted panel is used as it was chosen.
WHOLE_TRANSCRIPTOME = 1000
#: With a larger share of repeated names an input is refused; with less, these names are left out.
MOST_REPEATED = 0.005

_ENSEMBL = re.compile(r"^ENS[A-Z]{0,6}G\d{11}(\.\d+)?$")


class Genes(NamedTuple):
    """The genes of one input: what to call it in messages, ``.var``, names of spots or cells, the option that names genes."""

    name: str
    var: pd.DataFrame
    obs_names: pd.Index
    option: str


def check_unique(genes: Genes) -> str | None:
    """Refuse repeated gene names; a few among many are left out, as the warning returned says."""
    names = genes.var.index
    again = names[names.duplicated()].unique()
    if not len(again):
        return None
    occur = f"{number(len(again), 'gene name')} occur{'s' * (len(again) == 1)}"
    what = f"{genes.name}: {occur} more than once, e.g. {_some(again)}"
    if len(again) > MOST_REPEATED * len(names):
        raise InputError(
            f"{what}; expected {len(names):,} unique names.",
            "Sum the repeated columns if they are the same gene; otherwise name genes by unique identifiers: "
            f"read(path, genes=<column of .var>) ({genes.option} COLUMN); .var has the columns "
            f"{_some(genes.var.columns, 8)}.",
        )
    return f"{what}; these are ambiguous and left out."


def shared_genes(inputs: Sequence[Genes], min_genes: int) -> np.ndarray:
    """The sorted names that every input has exactly once; too few are refused with the likely cause."""
    unique = [genes.var.index[~genes.var.index.duplicated(keep=False)] for genes in inputs]
    shared = reduce(lambda left, right: left.intersection(right, sort=False), unique)
    if len(shared) < min_genes:
        first, other = _worst_pair(inputs)
        raise InputError(
            f"Expected at least {min_genes} genes shared by all inputs, found {len(shared)}.\n"
            f"  {first.name} has {len(first.var):,} genes: {_some(first.var.index)}\n"
            f"  {other.name} has {len(other.var):,} genes: {_some(other.var.index)}",
            likely_cause(first, other),
        )
    names = np.sort(shared.to_numpy(dtype=str))
    if bad := [name for name in names if not name or holds_control(name)]:
        raise InputError(
            f"{number(len(bad), 'gene name')} {'is' if len(bad) == 1 else 'are'} empty or "
            f"{'has' if len(bad) == 1 else 'have'} control characters such as line breaks, e.g. {bad[0]!r}.",
            "Rename these genes in all inputs, or leave them out.",
        )
    return names


def likely_cause(first: Genes, other: Genes) -> str:
    """A sentence on why the names of two inputs do not meet, and what to do."""
    left, right = first.var.index.astype(str), other.var.index.astype(str)
    for genes, names in ((first, left), (other, right)):
        if len(names) and names.str.fullmatch(r"\d+").all():
            return f"{genes.name} has numbers for gene names; set .var_names to the names{_columns(genes)}."
    column = _column_that_fits(first, other)
    if column:
        return column
    for genes, against in ((first, right), (other, left)):
        if len(genes.obs_names.astype(str).intersection(against)) > len(left.intersection(right)):
            return (
                f"{genes.name} has genes in rows: for a table, say read(path, transpose=True) (--transpose); from other "
                "files take adata.T, and write that."
            )
    ensembl = [bool(len(names)) and names.str.match(_ENSEMBL).mean() > 0.5 for names in (left, right)]
    if ensembl[0] != ensembl[1]:
        which = first if ensembl[0] else other
        return (
            f"{which.name} names genes by Ensembl identifiers, the other by symbols; use one kind in both"
            f"{_columns(which)}."
        )
    if _meets(left, right, lambda names: names.str.replace(r"\.\d+$", "", regex=True)):
        return "The names differ by version suffixes (.1, .12); cut them: var_names.str.split('.').str[0]."
    if _meets(left, right, lambda names: names.str.upper()):
        return (
            "The names differ in case: human (TP53) against mouse (Trp53)? If it is the same species, use "
            "var_names.str.upper() in both."
        )
    return "Are the inputs of the same species and annotation? Use names of one annotation in both."


def warn_few_shared(inputs: Sequence[Genes], shared: int) -> list[str]:
    """Warnings where less than a tenth of the smallest input's genes, or few genes at all, are shared."""
    smallest = min(inputs, key=lambda genes: len(genes.var))
    warnings = []
    if shared < 0.1 * len(smallest.var):
        first, other = _worst_pair(inputs)
        warnings.append(
            f"Only {shared:,} genes are shared, {shared / len(smallest.var):.1%} of those of "
            f"{smallest.name}. {likely_cause(first, other)}"
        )
    elif shared < 100:
        warnings.append(f"Only {shared} genes are shared; places will be coarse.")
    return warnings


def _worst_pair(inputs: Sequence[Genes]) -> tuple[Genes, Genes]:
    """The two inputs that share fewest genes, among those with the last (the cells) or the first."""
    pairs = [(one, inputs[-1]) for one in inputs[:-1]] + [(inputs[0], one) for one in inputs[1:]]
    pairs = pairs or [(inputs[0], inputs[0])]
    return min(pairs, key=lambda pair: len(pair[0].var.index.intersection(pair[1].var.index)))


def _meets(left: pd.Index, right: pd.Index, change: Callable[[pd.Index], pd.Index]) -> bool:
    before = len(left.intersection(right))
    after = len(change(left).unique().intersection(change(right).unique()))
    return after > 2 * before and after >= 0.1 * min(len(left), len(right))


def _column_that_fits(first: Genes, other: Genes) -> str:
    """A column of either ``.var`` that shares far more names with the other input than the index does."""
    now = len(first.var.index.intersection(other.var.index))
    for genes, against in ((first, other), (other, first)):
        for column in genes.var.columns:
            if genes.var[column].dtype.kind in "OTU" or isinstance(
                genes.var[column].dtype, pd.CategoricalDtype
            ):
                meets = len(pd.Index(genes.var[column].astype(str)).unique().intersection(against.var.index))
                if meets > 2 * now and meets >= 0.1 * len(against.var):
                    return (
                        f"{genes.name} keeps names that fit {against.name} in .var[{column!r}] "
                        f"({meets:,} in common): read(path, genes={column!r}) ({genes.option} {quote(str(column))})."
                    )
    return ""


def _columns(genes: Genes) -> str:
    return (
        f" (.var of {genes.name} has the columns {_some(genes.var.columns, 8)})"
        if len(genes.var.columns)
        else ""
    )


def _some(names: pd.Index, most: int = 4) -> str:
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "") or "none"
