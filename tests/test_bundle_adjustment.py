"""The example of bundle adjustment: libmv's files are read right, the Jacobian is right, the error goes down."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FREE = np.array([0, 3, 4])


@pytest.fixture(scope="module")
def bundle():
    import hy  # noqa: F401  (lets Python import Hy files)

    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("bundle_adjustment")
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop("bundle_adjustment", None)


@pytest.fixture(scope="module")
def scene(bundle):
    return bundle.made_up(FREE, cameras=4, points=20)


def write_libmv(path: Path, problem, kind: bytes = b"P") -> None:
    """A problem as a libmv file, with images and tracks numbered in another order than they are stored."""
    images, tracks = 100 - np.arange(len(problem.poses)), 7 * np.arange(len(problem.places))
    turns = Rotation.from_rotvec(problem.poses[:, :3]).as_matrix()
    markers = problem.markers if kind == b"P" else (problem.markers - problem.lens[1:3]) / problem.lens[0]
    with path.open("wb") as out:
        out.write(b"v" + kind + problem.lens.astype("<f4").tobytes())
        out.write(np.int32(len(images)).tobytes())
        for image, turn, pose in zip(images, turns, problem.poses):
            out.write(np.int32(image).tobytes() + turn.T.astype("<f4").tobytes() + pose[3:].astype("<f4").tobytes())
        out.write(np.int32(len(tracks)).tobytes())
        for track, place in zip(tracks, problem.places):
            out.write(np.int32(track).tobytes() + place.astype("<f4").tobytes())
        out.write(np.int32(len(markers)).tobytes())
        for camera, point, seen in zip(problem.camera, problem.point, markers):
            out.write(np.array([images[camera], tracks[point]], "<i4").tobytes() + seen.astype("<f4").tobytes())


def test_a_file_is_read_right(bundle, scene, tmp_path: Path) -> None:
    write_libmv(tmp_path / "p.bin", scene)
    read = bundle.read_libmv(tmp_path / "p.bin", FREE)
    for name in ("lens", "poses", "places", "camera", "point", "markers"):
        np.testing.assert_allclose(getattr(read, name), getattr(scene, name), rtol=1e-5, atol=1e-5, err_msg=name)
    assert list(read.free) == [0, 3, 4]


def test_normalised_markers_leave_the_lens_alone(bundle, scene, tmp_path: Path) -> None:
    write_libmv(tmp_path / "n.bin", scene, b"N")
    read = bundle.read_libmv(tmp_path / "n.bin", FREE)
    assert list(read.lens) == [850, 0, 0, 0, 0, 0, 0, 0] and len(read.free) == 0
    np.testing.assert_allclose(read.markers, scene.markers - [640, 360], atol=1e-3)


def test_the_model_is_the_camera(bundle, scene) -> None:
    """Against the formulas of libmv's camera, written with NumPy and SciPy's rotations."""
    lens = np.array([900.0, 640, 360, -0.12, 0.03, 0.01, 0.001, -0.002])
    found = bundle.residuals(lens, *scene.args()[1:])
    turned = Rotation.from_rotvec(scene.poses[scene.camera, :3]).apply(scene.places[scene.point])
    x, y, z = (turned + scene.poses[scene.camera, 3:]).T
    x, y = x / z, y / z
    f, px, py, k1, k2, k3, p1, p2 = lens
    q = x * x + y * y
    d = 1 + k1 * q + k2 * q**2 + k3 * q**3
    u = f * (x * d + 2 * p1 * x * y + p2 * (q + 2 * x * x)) + px
    v = f * (y * d + 2 * p2 * x * y + p1 * (q + 2 * y * y)) + py
    np.testing.assert_allclose(found, np.stack([u, v], 1) - scene.markers, atol=1e-9)


def test_the_jacobian_is_one_of_blocks(bundle, scene) -> None:
    import hyad

    jacobian = hyad.sparse_jacobian(bundle.residuals, wrt=("lens", "poses", "places"))
    args = scene.args()
    assert jacobian.how(*args) == "blocks of 2 x 17"
    found = jacobian(*args).toarray()
    x = np.concatenate([np.ravel(a) for a in args[:3]])
    ends = np.cumsum([np.size(a) for a in args[:2]])

    def residuals(x: np.ndarray) -> np.ndarray:
        moved = [p.reshape(np.shape(a)) for p, a in zip(np.split(x, ends), args)]
        return np.ravel(bundle.residuals(*moved, *args[3:]))

    for column in [*range(14), 20, 40]:
        h = np.zeros(len(x))
        h[column] = 1e-6
        slope = (residuals(x + h) - residuals(x - h)) / 2e-6
        np.testing.assert_allclose(found[:, column], slope, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [b"P", b"N"])
def test_a_file_is_refined(bundle, scene, kind: bytes, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_libmv(tmp_path / "p.bin", scene, kind)
    plot = tmp_path / "bundle.png"
    assert bundle.main([str(tmp_path / "p.bin"), "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    errors = [float(line.split()[2]) for line in lines if line.startswith("step")]
    assert errors == sorted(errors, reverse=True) and errors[0] > 10
    assert errors[-1] < (0.4 if kind == b"P" else 3)  # the distortion is still in the markers, and no lens is free
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("order", [("places", "poses"), ("poses", "places")])
def test_cameras_or_points_are_eliminated(bundle, scene, order: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them are makes no difference."""
    monkeypatch.setattr(bundle.Problem, "order", lambda self: order)
    *_, (_, error) = bundle.refine(scene, 50)
    assert error < 0.4


def test_a_foreign_file_is_refused(bundle, scene, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_libmv(tmp_path / "whole.bin", scene)
    whole = (tmp_path / "whole.bin").read_bytes()
    stray = whole[:-12] + np.int32(999).tobytes() + whole[-8:]  # the track of the last marker
    none = whole[: -16 * len(scene.markers) - 4] + bytes(4)
    for text, said in (
        (b"PNG", "does not start"),
        (whole[:500], "ends too early, after 500 bytes"),
        (stray, "of a track that is not in"),
        (none, "no markers"),
    ):
        (tmp_path / "bad.bin").write_bytes(text)
        with pytest.raises(SystemExit) as stop:
            bundle.main([str(tmp_path / "bad.bin")])
        assert stop.value.code == 2 and said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bundle.main([str(tmp_path / "none.bin")])
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bundle.main(["--lens", "f k9"])
    assert "the numbers of a lens are" in capsys.readouterr().err


@pytest.mark.skipif("HYAD_LIBMV_DATA" not in os.environ, reason="HYAD_LIBMV_DATA names no folder of libmv's problems")
def test_real_problems_improve(bundle, tmp_path: Path) -> None:
    files = sorted(Path(os.environ["HYAD_LIBMV_DATA"]).glob("problem_*.bin"))
    assert files
    for path in files:
        errors = [error for _, error in bundle.refine(bundle.read_libmv(path, FREE), 5)]
        assert errors[0] < 3 and errors[-1] < errors[0]
