"""What a published model is sent, and which files it opens for whoever sends it."""

import base64
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from stages.data.pixels import SIZE, Unusable
from stages.data.rows import png
from stages.models import clip as clips
from stages.tasks import retrieval
from stages.tasks.base import reach
from stages.tasks.base.pictures import picture
from stages.tasks.base.reach import Refused
from tests.prepare.test_pixels import png_by_hand

IMAGE = png(np.full((28, 28), 7, dtype=np.uint8))
ENCODED = base64.b64encode(IMAGE).decode()
OTHER = png(np.full((28, 28), 200, dtype=np.uint8))


@pytest.fixture(autouse=True)
def own_python(monkeypatch) -> None:
    for name in (reach.FOLDER, *reach.SERVING):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=reach.SERVING)
def on_a_server(request, monkeypatch) -> None:
    monkeypatch.setenv(request.param, "true")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The one that may be read, beside a file that may not."""
    (tmp_path / "photos" / "inner").mkdir(parents=True)
    (tmp_path / "photos-of-others").mkdir()
    for name in ("photos/own.png", "photos/inner/own.png"):
        (tmp_path / name).write_bytes(IMAGE)
    for name in ("secret.png", "photos-of-others/secret.png"):
        (tmp_path / name).write_bytes(OTHER)
    monkeypatch.setenv(reach.FOLDER, str(tmp_path / "photos"))
    return tmp_path / "photos"


def seen(image: Image.Image) -> int:
    (value,) = set(np.asarray(image).ravel().tolist())
    return value


@pytest.mark.parametrize(
    "sent",
    [ENCODED, f"data:image/png;base64,{ENCODED}", f"DATA:;base64,{ENCODED}", "\n".join([ENCODED[:60], ENCODED[60:]])],
    ids=["bare", "data: URI", "data: URI without a type", "in lines"],
)
def test_bytes_are_an_image_on_a_server_too(sent, on_a_server):
    assert seen(picture(sent)) == 7


def test_a_server_opens_no_file_and_does_not_say_whether_it_is_there(on_a_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.png").write_bytes(IMAGE)
    Path("base64").write_bytes(IMAGE)
    said = set()
    for name in ("own.png", "not.png", str(tmp_path / "own.png"), "base64", "/etc/passwd"):
        with pytest.raises(Refused) as error:
            picture(name)
        said.add(str(error.value).replace(reach.shown(name), "NAME"))
    (message,) = said
    assert "send the image itself in base64" in message and "--images FOLDER" in message


def test_your_own_python_opens_what_you_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("own.png", "base64"):  # the second could be base64 as well
        Path(name).write_bytes(IMAGE)
        assert seen(picture(name)) == seen(picture(str(tmp_path / name))) == 7


def test_a_file_of_the_folder_is_opened_by_its_relative_path(folder, on_a_server):
    (folder / "link.png").symlink_to(folder / "inner" / "own.png")
    for name in ("own.png", "inner/own.png", "inner/../own.png", "./own.png", "link.png"):
        assert seen(picture(name)) == 7
    assert seen(picture(ENCODED)) == 7


def test_nothing_outside_the_folder_is_opened(folder, on_a_server):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "way").symlink_to(folder.parent)
    (folder / "loop.png").symlink_to(folder / "loop.png")
    names = ("../secret.png", "inner/../../secret.png", "link.png", "way/secret.png", "../photos-of-others/secret.png")
    for name in (*names, str(folder.parent / "secret.png"), str(folder / "own.png"), "/etc/passwd", "..", "~/x.png"):
        with pytest.raises(Refused):
            picture(name)
    for name in ("loop.png", "a\0b", "x" * 5001, "", ".", "inner", "no.png"):
        with pytest.raises(Refused, match="not an image file"):
            picture(name)
    os.mkfifo(folder / "pipe.png")  # to open it would be to wait
    with pytest.raises(Refused, match="not an image file"):
        picture("pipe.png")


def test_files_over_the_limit_are_refused_before_they_are_read(folder, on_a_server):
    with (folder / "large.png").open("wb") as file:
        file.truncate(reach.LARGEST + 1)
    for sent in ("large.png", base64.b64encode(bytes(25 * 2**20)).decode()):
        with pytest.raises(Refused, match=r"2\d\.0 MB is too large; send at most 20 MB"):
            picture(sent)


def test_few_bytes_that_are_many_pixels_are_refused(on_a_server):
    for height in (20_000, 9_000):  # twice as many as Pillow refuses, and so many that it only warns
        bomb = base64.b64encode(png_by_hand(20_000, 8, 0, b"", height=height)).decode()
        with pytest.raises(Unusable) as error:
            picture(bomb)
        assert error.value.kind == SIZE and "pixels" in str(error.value)


def test_what_is_no_image_is_refused_in_words_that_hold_no_address(on_a_server):
    letter = base64.b64encode(b"a letter to a friend" * 20).decode()
    for sent in (letter, f"data:text/plain;base64,{letter}"):
        with pytest.raises(Unusable, match=r"^not a readable image \(of no known format\)$"):
            picture(sent)
    with pytest.raises(Refused, match="is not base64"):
        picture("data:image/png;base64,***")
    with pytest.raises(Refused, match="opens none of its files"):
        picture("data:image/svg+xml,<svg/>")


def test_what_is_no_text_or_no_row_is_refused():
    for table, why in ((pd.DataFrame({"image": ["a", 5]}), "5 is none"), (pd.DataFrame({"image": []}), "no row")):
        with pytest.raises(Refused, match=why):
            reach.require_texts(table, ("image",))


def test_retrieval_looks_into_the_folder_alone(folder, monkeypatch):
    torch.manual_seed(0)
    clip = clips.create("stages/models/configs/tiny-clip")
    answer = retrieval.TASK.serve(clip, {"shown": 5})

    def found(where: str) -> list[str]:
        return json.loads(answer(pd.DataFrame({"query": ["a 1"], "folder": [where]}))["images"][0])

    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    assert found(".") == ["own.png"] and found("inner") == ["own.png"]
    for outside in ("..", "../photos-of-others", str(folder.parent), str(folder)):
        with pytest.raises(Refused, match="is not in the folder of images"):
            found(outside)
    monkeypatch.delenv(reach.FOLDER)
    assert found(str(folder.parent)) == ["secret.png"]  # your own Python
    monkeypatch.setenv(reach.SERVING[0], "true")
    with pytest.raises(Refused, match="opens none of its files"):
        found(str(folder))
