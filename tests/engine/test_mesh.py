"""Meshes that do and do not suit devices and model, by the config alone."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from noisyjax.engine.config import MeshConfig
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.engine.mesh import device_grid, host_layout, open_layout
from noisyjax.errors import UsageError
from noisyjax.models import ModelError, config_to_hf
from noisyjax.models.sharding import MESH_AXES, SERVING, TRAINING


def slices(*sizes):
    """Stand-ins for the devices of TPU slices."""
    return [
        SimpleNamespace(id=i, slice_index=i // sizes[0], platform="cpu", device_kind="cpu", process_index=i)
        for i in range(sum(sizes))
    ]


def test_one_device_needs_no_mesh_unless_it_is_chosen(cfg):
    assert open_layout(MeshConfig(), cfg, SERVING) is None
    layout = open_layout(MeshConfig(), cfg, SERVING, devices=jax.devices()[5:])
    assert list(layout.mesh.devices.flat) == jax.devices()[5:6]


@pytest.mark.parametrize(
    ("mesh", "devices", "data"),
    [({}, 8, 8), ({"tensor": 4}, 8, 2), ({"expert": 4, "tensor": 2}, 8, 1), ({"tensor": 3}, 8, 2), ({"data": 2}, 8, 2)],
)
def test_an_open_data_axis_takes_what_is_left(mesh, devices, data):
    config = MeshConfig(**mesh).filling(devices)
    assert config.data == data
    assert config.model_copy(update={"data": None}).devices * data == config.devices <= devices
    assert config.filling(2 * devices) == config


def test_a_host_is_filled_but_for_a_cpu(cfg, monkeypatch):
    assert open_layout(MeshConfig(tensor=2), cfg, SERVING).mesh.size == 2
    real, asked = jax.devices(), []
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform="tpu")] * 8)
    monkeypatch.setattr(
        "noisyjax.engine.mesh.device_grid", lambda config, _: (asked.append(config), device_grid(config, real))[1]
    )
    assert open_layout(MeshConfig(tensor=2), cfg, SERVING).mesh.size == 8
    assert asked[0].axes["data"] == 4


def test_neighbours_share_the_heads(cfg):
    layout = open_layout(MeshConfig(data=2, tensor=2), cfg, SERVING)
    assert layout.mesh.axis_names == MESH_AXES
    assert layout.mesh.devices[0, 1, 0, 0].tolist() == jax.devices()[2:4]


def test_slices_hold_whole_replicas():
    grid = device_grid(MeshConfig(replicas=4, fsdp=2, tensor=2), slices(8, 8))
    assert grid.shape == (4, 1, 2, 1, 2)
    assert [[d.slice_index for d in replica.flat] for replica in grid] == [[0] * 4, [0] * 4, [1] * 4, [1] * 4]
    assert sorted(d.id for d in grid.flat) == list(range(16))


def of_hosts(*hosts):
    """Stand-ins for devices, with the host that each belongs to."""
    return [SimpleNamespace(id=i, platform="cpu", device_kind="cpu", process_index=h) for i, h in enumerate(hosts)]


@pytest.mark.parametrize(
    ("mesh", "hosts", "lies"),
    [
        ({"fsdp": 2, "tensor": 2}, (0, 1, 0, 1), [[0, 0], [1, 1]]),  # neighbours are together on a host
        ({"data": 2, "fsdp": 2, "tensor": 2}, (0, 1, 0, 1, 0, 1, 0, 1), [[0, 0], [0, 0], [1, 1], [1, 1]]),
        ({"fsdp": 4}, (0, 1, 0, 1), [[0], [1], [0], [1]]),  # nothing to keep together
        ({"tensor": 4}, (0, 1, 0, 1), [[0, 1, 0, 1]]),  # cannot be
    ],
)
def test_hosts_keep_their_groups(mesh, hosts, lies):
    grid = device_grid(MeshConfig(**mesh), of_hosts(*hosts))
    assert [[d.process_index for d in group.flat] for group in grid.reshape(-1, *grid.shape[-2:])] == lies
    assert sorted(d.id for d in grid.flat) == list(range(len(hosts)))


def test_the_host_of_a_whole_mesh_is_all_of_it(cfg):
    layout = open_layout(MeshConfig(data=2, fsdp=2, tensor=2), cfg, TRAINING)
    own = host_layout(layout, SERVING, 0)
    assert dict(own.mesh.shape) == {"replica": 1, "data": 4, "fsdp": 1, "expert": 1, "tensor": 2}
    assert list(own.mesh.devices.flat) == list(layout.mesh.devices.flat)


def test_a_model_that_no_host_holds():
    grid = device_grid(MeshConfig(tensor=4), of_hosts(0, 0, 1, 1))
    with pytest.raises(UsageError, match=r"mesh.expert x mesh.tensor = 4 must divide the 2 devices of a host"):
        host_layout(SimpleNamespace(mesh=SimpleNamespace(devices=grid)), SERVING, 1)


@pytest.mark.parametrize("mesh", [{"fsdp": 16}, {"replicas": 3, "fsdp": 4}], ids=["none", "three"])
def test_replicas_that_slices_cannot_share(mesh):
    with pytest.raises(UsageError, match="on 2 slices of 16 devices in all: use every device, and a number of repl"):
        device_grid(MeshConfig(**mesh), slices(8, 8))


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({"data": 4, "tensor": 4}, "mesh data=4 x tensor=4 needs 16 devices; here are 8"),
        ({"tensor": 3}, "layers.attn.q_nhd: heads of size 8 cannot be cut into 3"),
        ({"expert": 2}, "mesh.expert=2: this qwen3 model has no experts"),
    ],
)
def test_refused_before_the_weights_are_looked_for(cfg, tmp_path, mesh, words):
    """A folder with nothing but a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(config_to_hf(cfg)))
    with pytest.raises((UsageError, ModelError), match=words):
        LocalEngine(LocalConfig(model=tmp_path, mesh=mesh))


def test_axes_multiply():
    mesh = MeshConfig(replicas=2, data=3, fsdp=5, expert=7, tensor=11)
    assert tuple(mesh.axes) == MESH_AXES
    assert mesh.devices == np.prod(list(mesh.axes.values())) == 2310
