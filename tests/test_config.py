from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from spatialgears.bench.presets import changes
from spatialgears.config import Config, listing
from spatialgears.config.removed import FIXED, FIXED_FOR_PATCHES, REMOVED_VALUES
from spatialgears.errors import ConfigError

PRESETS = ["quick", "default", "paper", "paper-small"]

#: The appendix "Hyperparameters and Reproducibility", transcribed again from the paper.
APPENDIX = {
    "expression": {
        "embed_dim": 128,
        "lambda_inv": 25,
        "lambda_var": 25,
        "lambda_cov": 1,
        "grl_ramp_epochs": 200,
        "grl_warmup_epochs": 50,
        "slide_adversary": 50,
        "mmd": 20,
        "coral": 1,
        "local_alignment": 4,
        "epochs": 2000,
        "lr": 1e-4,
        "batch_size": 32,
        "thinning": False,
        "gene_weights": "none",
    },
    "geometry": {
        "inputs": "embedding",
        "context_blocks": 3,
        "inducing": 128,
        "width": 256,
        "generator_blocks": 4,
        "denoiser_blocks": 4,
        "nca": 1.0,
        "nca_temperature": 0.5,
        "lr": 1e-4,
        "batch_size": 32,
        "steps": 300 * 141,
    },
    "assembly": {
        "coverage": 10,
        "steps": 600,
        "sigma_start": 3,
        "solve_steps": 1000,
        "mode": "patches",
    },
}


#: The same for what all presets share: constants beside the code they govern.
CONSTANTS = {
    "expression.encoder": {"HIDDEN": (512, 256)},
    "expression.views": {"DROPOUT": 0.3, "NOISE": 0.015, "JITTER": 0.25},
    "expression.losses": {"GAMMA": 1},
    "expression.adversary": {"HIDDEN": 512, "DROPOUT": 0.1},
    "expression.probe": {"K": 20},
    "expression.training": {"MIXED": 0.5 + 0.08},
    "supervision.targets": {"DIM": 32},
    "supervision.minisets": {"OVERLAP": 0.5, "MIN_OVERLAP": 20},
    "geometry.attention": {"HEADS": 4},
    "geometry.local": {"NEIGHBORS": 15, "LANDMARKS": 16, "DISTANCE_BINS": 24, "ANGLE_BINS": 8},
    "geometry.objective": {"OVERLAP_GATE": 1.0},
    "assembly.graph": {"NEIGHBORS": 50, "JACCARD": 0.2},
    "assembly.patches": {"OVERLAP": 0.7, "MIN_SHARED": 25, "MIN_SUPPORT": 2},
    "assembly.stitch": {"MAX_SPREAD": 0.5, "LEAST_SHARED": 5},
    "assembly.solve": {"LANDMARKS": 128, "DELTA": 0.1, "ANCHOR": 0.1, "RATE": 1e-2},
}


def test_weights_and_stages_of_training_are_the_appendix():
    from spatialgears.geometry import edm, objective

    assert (objective.WEIGHTS["gram"], objective.WEIGHTS["gram_scale"]) == (1.0, 0.5)
    assert len(edm.CURRICULUM) == 3


@pytest.mark.parametrize("module", CONSTANTS)
def test_constants_are_the_appendix(module):
    found = vars(importlib.import_module(f"spatialgears.{module}"))
    assert {key: found[key] for key in CONSTANTS[module]} == CONSTANTS[module]


@pytest.mark.parametrize("stage", APPENDIX)
def test_paper_preset_is_the_appendix(stage):
    found = Config.preset("paper").model_dump()[stage]
    assert {key: found[key] for key in APPENDIX[stage]} == APPENDIX[stage]


def test_the_small_paper_preset_has_every_component_and_weight_of_the_paper():
    sizes = {  # and some dropout
        "expression": "encoder_genes gene_selection batch_size max_steps lr grl_warmup_epochs grl_ramp_epochs",
        "supervision": "n_min n_max",
        "geometry": "input_dropout width inducing reference steps batch_size slide_batch lr",
        "assembly": "patch_size steps",
    }
    found = set(changes(Config.preset("paper-small"), "paper"))
    assert found == {f"{stage}.{key}" for stage, keys in sizes.items() for key in keys.split()}


def test_paper_seed():
    assert Config.preset("paper").seed == 42


@pytest.mark.parametrize("name", PRESETS)
def test_json_round_trip(name, tmp_path):
    config = Config.preset(name).with_values(["seed=7", "geometry.lr=0.01"])
    (tmp_path / "c.json").write_text(config.to_json())
    assert Config.from_file(tmp_path / "c.json") == config


def test_presets_differ_and_quick_is_quicker():
    quick, default, paper, small = map(Config.preset, PRESETS)
    assert len({one.to_json() for one in (quick, default, paper, small)}) == 4
    assert quick.geometry.steps < default.geometry.steps < paper.geometry.steps
    assert default == Config()


def test_a_file_may_name_a_preset_and_give_only_what_differs(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"preset": "paper", "geometry": {"width": 64}}))
    assert Config.from_file(path) == Config.preset("paper").with_values({"geometry": {"width": 64}})


def test_configs_are_frozen():
    with pytest.raises(ValidationError):
        Config().geometry.width = 3


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("geometry.stesp=3", ["geometry.stesp", "no such key", "steps"]),
        ("geometri.steps=3", ["geometri", "no such key", "geometry"]),
        ("assembly.spacing=1.5", ["assembly.spacing", "less than or equal to 1", "1.5"]),
        ("supervision.n_min=2", ["supervision.n_min", "greater than or equal to 8", "found 2"]),
        ("assembly.mode=fast", ["assembly.mode", "'auto', 'one-shot' or 'patches'", "'fast'"]),
        ("geometry.lr=NaN", ["geometry.lr", "finite"]),
        ("geometry.steps=many", ["geometry.steps: expected a whole number (allowed: >= 1", "'many'"]),
        ("geometry.nearest=maybe", ["geometry.nearest: expected true or false, found 'maybe'"]),
        ("geometry.width=30", ["geometry.width", "multiple of 4", "found 30"]),
        ("supervision.n_max=50", ["supervision", "n_max must be at least n_min = 96, found 50"]),
    ],
)
def test_wrong_values_are_refused_by_name_range_and_value(assignment, words):
    with pytest.raises(ConfigError) as error:
        Config().with_values([assignment])
    for word in words:
        assert word in str(error.value)


def test_all_wrong_values_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        Config().with_values(["geometry.width=1", "assembly.coverage=0"])
    assert "geometry.width" in str(error.value) and "assembly.coverage" in str(error.value)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("seed=5", "seed", 5),
        ("expression.thinning=false", "expression", False),
        ("expression.thinning=False", "expression", False),
        (" expression.thinning = False ", "expression", False),
    ],
)
def test_assignments_parse(text, key, value):
    config = Config().with_values([text])
    assert (config.seed if key == "seed" else config.expression.thinning) == value


def test_assignments_may_be_one_text_or_a_mapping_with_dotted_keys():
    once = Config().with_values(["geometry.steps=800", "geometry.lr=0.1"])
    nested = {"lr": 0.1}
    assert Config().with_values("geometry.steps=800").geometry.steps == 800
    assert Config().with_values({"geometry.steps": 800, "geometry.lr": 0.1}) == once
    assert Config().with_values({"geometry": nested, "geometry.steps": 800}) == once
    assert Config().with_values({"geometry.steps": 800, "geometry": nested}) == once
    assert nested == {"lr": 0.1}


def test_a_near_miss_is_named_and_not_every_key():
    with pytest.raises(ConfigError) as near:
        Config().with_values("geometry.step=800")
    assert "did you mean steps?" in str(near.value) and "crossfit" not in str(near.value)
    with pytest.raises(ConfigError, match=r"allowed are steps, .*crossfit"):
        Config().with_values("geometry.xyz=800")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("steps=3", "geometry.steps or assembly.steps"),
        ("geometry.n_genes=9", "expression.n_genes"),
        ("geometry.seed=1", "seed"),
    ],
)
def test_a_key_of_another_section_is_told_with_its_section(given, meant):
    with pytest.raises(
        ConfigError, match=rf"{given.split('=')[0]}: there is no such key; did you mean {meant}\?"
    ):
        Config().with_values(given)


@pytest.mark.parametrize("text", ["seed", "=3", "seed=1.5", "geometry=3"])
def test_assignments_that_do_not_parse(text):
    with pytest.raises(ConfigError):
        Config().with_values([text])


def test_assignments_that_contradict_each_other():
    with pytest.raises(ConfigError, match="part of a value that was set before"):
        Config().with_values(["geometry=3", "geometry.steps=3"])


@pytest.mark.parametrize("values", [[1], None, "quick", {"geometry": [1]}, {1: 2}])
def test_values_that_are_no_mapping_of_settings_are_refused(values):
    with pytest.raises(ConfigError, match="cannot be used"):
        Config.from_dict(values)


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        Config.from_file(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{seed: 3}")
    with pytest.raises(ConfigError, match="not a JSON file"):
        Config.from_file(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(ConfigError, match="expected an object"):
        Config.from_file(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"preset": "fast"}')
    with pytest.raises(ConfigError, match="quick, default, paper"):
        Config.from_file(tmp_path / "c.json")


@pytest.mark.parametrize("key", FIXED)
def test_a_removed_key_is_accepted_with_its_fixed_value_and_refused_by_name_with_another(key):
    assert Config().with_values({key: FIXED[key]}) == Config()
    with pytest.raises(ConfigError, match=rf"{key} = 'other': this key was removed; it is fixed at"):
        Config().with_values({key: "other"})


@pytest.mark.parametrize("key", FIXED_FOR_PATCHES)
def test_keys_of_the_mixed_patches_matter_to_patches_alone(key):
    patches = Config().with_values({"assembly.mode": "patches"})
    assert Config().with_values({key: "other"}) == Config()
    assert patches.with_values({key: FIXED_FOR_PATCHES[key]}) == patches
    with pytest.raises(ConfigError, match=rf"{key} = 'other': this key was removed; it is fixed at"):
        patches.with_values({key: "other"})


@pytest.mark.parametrize(("key", "value"), REMOVED_VALUES)
def test_a_removed_value_is_refused_with_those_that_remain(key, value):
    with pytest.raises(ConfigError, match=rf"{key} = '{value}': this value was removed; use"):
        Config().with_values({key: value})


def test_settings_are_few_and_every_field_is_described():
    fields = list(listing.rows())
    settings = [row for row in fields if row.role == "setting"]
    assert len(fields) <= 90 and len(settings) <= 25
    assert all(row.description for row in fields) and all(row.when for row in settings)
    assert {row.role for row in fields} == {"setting", "constant"}


def test_a_field_exists_because_presets_differ_or_there_is_a_reason_to_set_it():
    """The others vary in the benchmark: the refiner and the weights of patches."""
    fixed = {
        row.key
        for row in listing.rows()
        if row.role == "constant" and len({json.dumps(value) for value in row.values.values()}) == 1
    }
    assert fixed == {"geometry.refiner", "assembly.reliability"}


def test_the_page_of_settings_is_up_to_date():
    found = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert found == listing.page(), "run python -m spatialgears.config.listing > docs/settings.md"
