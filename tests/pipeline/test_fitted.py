from __future__ import annotations

import json

import numpy as np
import torch

from spatialgears.pipeline.fitted import build_network
from spatialgears.storage.model_folder import StoredModel


def test_only_the_first_member_has_a_refiner(small_config):
    network = build_network(7, 3, small_config, directions=False)
    assert [hasattr(member, "denoiser") for member in network.members] == [True, False, False]


def test_no_training_data_is_kept_but_a_sample_of_views(small_model, small_tissue):
    fitted = small_model.fitted_
    assert [len(slide.coords) for slide in fitted.given_slides] == [one.n_obs for one in small_tissue.slides]
    slide, adata = fitted.given_slides[0], small_tissue.slides[0]
    back = slide.coords[slide.given] * slide.frame.scale + slide.frame.centre
    np.testing.assert_allclose(back, adata.obsm["spatial"], rtol=1e-6, atol=1e-6)
    assert fitted.meta()["members"] == 2 and fitted.network.training is False


def test_restored_is_what_was_fitted(small_model):
    fitted = small_model.fitted_
    stored = StoredModel(small_model.config, fitted.tensors(), fitted.panel.genes, fitted.meta())
    again = type(fitted).restore(stored)
    for name, value in fitted.tensors().items():
        assert torch.equal(again.tensors()[name], value), name
    assert json.dumps(again.meta()) == json.dumps(fitted.meta())
