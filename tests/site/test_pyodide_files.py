"""Pyodide comes from elsewhere: it is the one that is named, or there is none, and the site is built all the same."""

from __future__ import annotations

import sys
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "docs" / "_extensions"))

import pyodide_files
import widgets
from pyodide_files import NoPyodide, pyodide_folder


def without_npm(monkeypatch, answer) -> None:
    monkeypatch.setattr(pyodide_files.shutil, "which", lambda _: None)
    monkeypatch.setattr(pyodide_files.urllib.request, "urlopen", answer)


def test_another_package_than_the_named_one_is_refused_and_nothing_of_it_is_kept(monkeypatch, tmp_path):
    def write_another(folder):
        packed = folder / "pyodide.tgz"
        packed.write_bytes(b"not Pyodide")
        return packed

    monkeypatch.setattr(pyodide_files, "_fetch", write_another)
    with pytest.raises(NoPyodide, match="its sha512 is"):
        pyodide_folder(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_says_what_to_do(monkeypatch, tmp_path):
    def no_network(*_, **__):
        raise urllib.error.URLError("no network")

    without_npm(monkeypatch, no_network)
    with pytest.raises(NoPyodide, match=r"still pictures. With a network, run make site again; or unpack https://"):
        pyodide_folder(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_a_site_without_pyodide_keeps_its_still_pictures(monkeypatch):
    def nowhere():
        raise NoPyodide("there is none")

    connected = []
    monkeypatch.setattr(widgets, "pyodide_folder", nowhere)
    widgets.setup(SimpleNamespace(connect=lambda *given: connected.append(given)))
    assert connected == []
