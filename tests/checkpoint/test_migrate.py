import pytest

from pflow.checkpoint.migrate import without_removed

CONSTANTS = {
    "network": {"coverage": True, "cone_angle": 0.3, "pairwise_messages": True, "refine_layers": 1},
    "decoding": {"max_empty_steps": 3, "max_particles": 20},
    "training": {"scheduled_sampling_prob": 0.1},
}


def test_options_that_are_constants_now_may_be_given_with_their_values():
    model = {"class_path": "pflow.model.pointing.PointingReconstructor", "init_args": CONSTANTS}
    remaining = without_removed(model)["init_args"]
    assert remaining == {"network": {"refine_layers": 1}, "decoding": {"max_particles": 20}, "training": {}}
    first_stage = {"network": {"pairwise_messages": False, "delta_theta_phi_features": True}}
    assert without_removed({**model, "init_args": first_stage})["init_args"] == {"network": {}}


@pytest.mark.parametrize(
    ("part", "name", "value"), [("network", "coverage", False), ("decoding", "max_empty_steps", 5)]
)
def test_other_values_of_constants_are_refused(part, name, value):
    model = {"class_path": "pflow.model.pointing.PointingReconstructor", "init_args": {part: {name: value}}}
    with pytest.raises(ValueError, match=f"'{name}' is no longer an option: it is .*was made with {value}"):
        without_removed(model)
