"""DICOM files, made by pydicom: values as a viewer shows them, and nothing of the header anywhere."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileMetaDataset

from stages.data import dicom
from stages.data.pixels import FRAMES, SCALE, SIZE, UNREADABLE, Unusable, rgb
from stages.data.rows import Row
from stages.errors import UserError
from stages.sources.folder import Folder
from stages.sources.images import content, image_problems
from tests.conftest import ROOT

NAME = "HAYEK^SELMA"
CT = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}


def scan(values: np.ndarray, bits: int = 16, syntax: str = pydicom.uid.ExplicitVRLittleEndian, **elements) -> bytes:
    """A file with such stored values, and a patient."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = syntax, pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    d = pydicom.Dataset()
    d.file_meta, d.PatientName, d.PatientID = meta, NAME, "ID-4711"
    d.Rows, d.Columns, d.SamplesPerPixel = values.shape[0], values.shape[1], 3 if values.ndim == 3 else 1
    d.PhotometricInterpretation = "RGB" if values.ndim == 3 else "MONOCHROME2"
    if values.ndim == 3:
        d.PlanarConfiguration = 0
    d.BitsAllocated, d.BitsStored, d.HighBit = values.itemsize * 8, bits, bits - 1
    d.PixelRepresentation, d.PixelData = int(values.dtype.kind == "i"), values.tobytes()
    for name, value in elements.items():
        setattr(d, name, value)
    buffer = io.BytesIO()
    d.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def stored(*values: int, kind: type = np.uint16) -> np.ndarray:
    return np.array([values], kind)


SEEN = {
    "the depth that it states": (scan(stored(0, 2048, 4095), bits=12), [0, 128, 255]),
    "signed": (scan(stored(-32768, 0, 32767, kind=np.int16)), [0, 128, 255]),
    "8 bits": (scan(stored(0, 7, 255, 0, kind=np.uint8), bits=8), [0, 7, 255, 0]),
    "a window": (scan(stored(0, 100, 200, 900), WindowCenter=100.5, WindowWidth=201), [0, 128, 255, 255]),
    "Hounsfield of a CT": (scan(stored(0, 864, 1064, 1263, 4000), **CT), [0, 0, 128, 255, 255]),
    "the first of two windows": (
        scan(stored(0, 864, 1064, 1263), **CT | {"WindowCenter": [40, 300], "WindowWidth": [400, 9]}),
        [0, 0, 128, 255],
    ),
    "an exact window": (
        scan(stored(0, 50, 100), WindowCenter=50, WindowWidth=100, VOILUTFunction="LINEAR_EXACT"),
        [0, 128, 255],
    ),
    "a sigmoid": (
        scan(stored(0, 100, 60_000), WindowCenter=100, WindowWidth=10, VOILUTFunction="SIGMOID"),
        [0, 128, 255],
    ),
    "small is white": (scan(stored(0, 4095), bits=12, PhotometricInterpretation="MONOCHROME1"), [255, 0]),
    "small is white, in a window": (
        scan(stored(0, 864, 1263), PhotometricInterpretation="MONOCHROME1", **CT),
        [255, 255, 0],
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_the_picture_is_what_a_viewer_opens_it_with(name, tmp_path):
    file, expected = SEEN[name]
    (tmp_path / "scan").write_bytes(file)
    for seen in (rgb(file), rgb(tmp_path / "scan"), rgb(io.BytesIO(file)), rgb(content(tmp_path / "scan"))):
        assert seen.mode == "RGB" and np.asarray(seen)[0, :, 0].tolist() == expected


def test_colours_stay():
    values = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert np.array_equal(np.asarray(rgb(scan(values, bits=8))), values)


REFUSED = {
    "frames": (lambda: scan(stored(1, 2), NumberOfFrames=2), FRAMES),
    "compressed": (lambda: compressed(), SCALE),
    "deflated": (lambda: scan(stored(1, 2), syntax=pydicom.uid.DeflatedExplicitVRLittleEndian), SCALE),
    "palette": (lambda: scan(stored(1, 2), PhotometricInterpretation="PALETTE COLOR"), SCALE),
    "no width": (lambda: scan(stored(1, 2), WindowCenter=1, WindowWidth=0), SCALE),
    "a bomb": (lambda: scan(stored(1, 2), Rows=60_000, Columns=60_000), SIZE),
    "half a file": (lambda: scan(np.zeros((64, 64), np.uint16))[:3000], UNREADABLE),
    "no pixels": (lambda: scan(stored(1, 2))[:200], UNREADABLE),
}


def compressed() -> bytes:
    dataset = pydicom.dcmread(io.BytesIO(scan(stored(1, 2))))
    dataset.compress(pydicom.uid.RLELossless)
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_a_guess_is_refused_without_a_word_of_the_header(name, tmp_path, capfd, recwarn):
    make, kind = REFUSED[name]
    (tmp_path / "scan").write_bytes(make())
    with pytest.raises(Unusable) as error:
        rgb(make())
    assert error.value.kind == kind
    (problem,) = image_problems(tmp_path / "scan", "scan")
    assert not said(f"{problem} {error.value!r} {capfd.readouterr()} {[str(w.message) for w in recwarn]}")


def said(text: str | bytes) -> bool:
    text = text if isinstance(text, bytes) else text.encode()
    return any(part in text for part in (b"HAYEK", b"SELMA", b"4711"))


def folder_of_scans(folder: Path) -> Folder:
    folder.mkdir()
    rows = []
    for i in range(4):
        (folder / f"{i}.dcm").write_bytes(scan(np.full((8, 8), 500 * i + 100, np.uint16), bits=12))
        split = "test" if i > 2 else "train"
        rows.append({"file_name": f"{i}.dcm", "label": "benign", "unit": f"p{i}", "split": split})
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert said((folder / "0.dcm").read_bytes())
    return Folder(path=str(folder), classes=["benign", "malignant"], templates=["a {} scan"])


def test_prepared_data_hold_the_picture_and_no_patient(tmp_path):
    from stages.data.prepared import PreparedSplit, write

    dataset = folder_of_scans(tmp_path / "scans").load()
    write(tmp_path / "d", "d", dataset)
    row: Row = PreparedSplit(tmp_path / "d", "train").row(1)
    assert Image.open(io.BytesIO(row.image)).format == "PNG"
    assert set(np.asarray(row.pixels()).ravel().tolist()) == {round(255 * 600 / 4095)}
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".dcm"]
    assert len(files) > 3 and not any(said(path.read_bytes()) for path in files)


def test_without_pydicom_one_message_says_what_to_install(tmp_path, monkeypatch):
    source = folder_of_scans(tmp_path / "scans")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError) as refused:
        source.load()
    assert refused.value.problems == [f"{dicom.NEEDED}: 4"] and "pip install pydicom" in str(refused.value)


def test_nobody_imports_pydicom_who_has_no_such_file():
    code = "import sys, stages.data.pixels, stages.sources.folder; assert 'pydicom' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
