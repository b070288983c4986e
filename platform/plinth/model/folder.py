"""Reading of model folders: `config.json` and weights in one or several safetensors files.

    load_model      the decoder in a folder, in Plinth's or Hugging Face's layout
    load_weights    weights for an existing model
    SavedWeights    single tensors

All reading of model files goes through this module; `export` writes files for other programs. Put code for names and
configurations into `hugging_face`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter

from plinth.errors import CheckpointError
from plinth.model.decoder import Decoder
from plinth.model.division import file_tensors, state
from plinth.model.hugging_face import CONFIG, INDEX, WEIGHTS, hf_name, model_of
from plinth.model.packed import Unpacked, has_packed, packed_name
from plinth.storage import tensor_file
from plinth.storage.atomic import relative
from plinth.storage.tensor_file import DTYPES

#: Buffer in old Llama files, derived from the configuration.
DERIVED = "rotary_emb.inv_freq"

#: SHA-256 of a folder's files by name, if known from a trusted party.
Digests = Mapping[str, str] | None


class SavedWeights:
    """Tensors of a model folder, as a context manager. Files are memory-mapped, so only the tensors in use are read.
    Packed projections are seen as their parts.

    Args:
        digests: SHA-256 by file name; if given, files are read whole and compared with their digests.
        names: published names of the tensors that will be used; files without any of them are not opened.

    Raises:
        CheckpointError: there are no tensors, or a file is broken or has another digest.
    """

    def __init__(self, folder: Path, digests: Digests = None, names: Collection[str] | None = None) -> None:
        self.folder, self._digests, self._stack = folder, digests, ExitStack()
        self._file: dict[str, Any] = {}
        try:
            for name in self._files(names):
                file = self._open(name)
                if twice := sorted(self._file.keys() & file.keys()):
                    raise ValueError(f"both {name} and another file contain {', '.join(twice)}")
                self._file |= dict.fromkeys(file.keys(), file)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            self._stack.close()
            raise _no_model(folder, error) from error

    def __enter__(self) -> SavedWeights:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        """Return the published names of the tensors, in the order of the files."""
        return iter(self._file)

    @property
    def files(self) -> set[str]:
        """Names of the tensor files and, if there is one, their index file."""
        return {*self._files(None), *([INDEX] if (self.folder / INDEX).exists() else [])}

    def _open(self, name: str) -> Any:
        file: Any
        if self._digests is not None:
            file = CheckedTensors(read(self.folder, name, self._digests))
        else:
            tensor_file.places(self.folder / name)  # safetensors accepts a header with duplicate tensors
            file = self._stack.enter_context(safe_open(self.folder / name, framework="pt"))
        return Unpacked(file, read_config(self.folder, self._digests)) if has_packed(file.keys()) else file

    def _files(self, names: Collection[str] | None) -> list[str]:
        if not (self.folder / INDEX).exists():
            return [WEIGHTS]
        where = json.loads(read_text(self.folder, INDEX, self._digests))["weight_map"]
        wanted = None if names is None else {*names, *map(packed_name, names)}
        files = sorted({file for name, file in where.items() if wanted is None or name in wanted})
        if any("/" in str(relative(name, INDEX, error=CheckpointError)) for name in files):
            raise ValueError(f"{INDEX} names files outside the directory")
        return files

    def tensor(self, name: str) -> Tensor:
        """Return a whole tensor by its published name, on the CPU."""
        found: Tensor = self._file[name].get_tensor(name)
        return found

    def rows(self, name: str) -> Any:
        """Return a lazy tensor by its published name. The rows of the tensor are read when it is sliced."""
        return self._file[name].get_slice(name)

    def require(self, model: Decoder) -> None:
        """Raise an error unless the folder has exactly the tensors of the model.

        If embeddings are tied, the folder may contain the shared matrix under both of its names.

        Raises:
            CheckpointError: tensors are missing, unknown or have another shape; the error lists all of them.
        """
        wanted = {hf_name(name): tuple(tensor.shape) for name, tensor in file_tensors(state(model))}
        found = {name: tuple(self.rows(name).get_shape()) for name in self._file}
        if model.config.tied_embeddings:
            found.pop("lm_head.weight", None)
        found = {name: shape for name, shape in found.items() if not name.endswith(DERIVED)}
        differences = [f"{name} missing" for name in sorted(wanted.keys() - found.keys())]
        differences += [f"{name} unknown" for name in sorted(found.keys() - wanted.keys())]
        differences += [
            f"{name} has shape {found[name]}, expected {wanted[name]}"
            for name in sorted(wanted.keys() & found.keys())
            if wanted[name] != found[name]
        ]
        if differences:
            raise CheckpointError(
                f"the tensors in {self.folder} do not match its configuration", found="; ".join(differences)
            )


def load_model(directory: Path | str, digests: Digests = None) -> Decoder:
    """Load the decoder from a folder in Plinth's or Hugging Face's layout, with one weight file or several.

    The decoder is on the CPU, in the saved dtype and in evaluation mode. If `digests` (SHA-256 by file name) is given,
    every file that is read is compared with its digest.

    Raises:
        CheckpointError: a file is missing, broken or has another digest, tensors and configuration disagree, or the
            architecture is unsupported.
    """
    folder = Path(directory)
    model = described_model(read_config(folder, digests), folder)
    load_weights(model, folder, digests=digests)
    return model.eval()


def load_weights(
    model: Decoder,
    folder: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    digests: Digests = None,
) -> None:
    """Load a folder's tensors into an undivided model that is on the meta device.

    The tensors are placed on `device`, in the saved dtype unless `dtype` is given.

    Raises:
        CheckpointError: the files are missing or broken, or their tensors do not match the model.
    """
    with SavedWeights(folder, digests) as saved:
        saved.require(model)
        values = {}
        for name, whole in state(model):
            kind = dtype if isinstance(whole, Parameter) else whole.dtype  # a buffer keeps its precision
            parts = [saved.tensor(hf_name(part)).to(device, kind) for part, _ in file_tensors([(name, whole)])]
            values[name] = parts[0] if whole.dim() < 3 else torch.stack(parts)
        model.load_state_dict(values, assign=True)


def read_config(folder: Path, digests: Digests = None) -> dict[str, Any]:
    """Return the parsed `config.json` of a model folder.

    Raises:
        CheckpointError: the file is missing or broken.
    """
    try:
        found: dict[str, Any] = json.loads(read_text(folder, CONFIG, digests))
    except (OSError, ValueError) as error:
        raise _no_model(folder, error) from error
    return found


def read_text(folder: Path, name: str, digests: Digests = None) -> str:
    """Return the text of a file in a model folder.

    Raises:
        CheckpointError: the file has another digest.
        OSError, ValueError: the file cannot be read, or is not UTF-8.
    """
    if digests is None:
        return (folder / name).read_text(encoding="utf-8")
    return read(folder, name, digests).tobytes().decode()


def described_model(config: Mapping[str, Any], folder: Path) -> Decoder:
    """Return the model that a folder's configuration describes, on the meta device.

    Raises:
        CheckpointError: a field is missing, or Plinth's decoder does not support the model.
    """
    try:
        with torch.device("meta"):
            return Decoder(model_of(config), int(config["vocab_size"]))
    except (ValueError, KeyError) as error:
        raise _no_model(folder, error) from error


def _no_model(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{folder} is not a loadable model folder", found=error, expected=f"{CONFIG} and {WEIGHTS}"
    )


# Files of a model folder with known SHA-256. The bytes that are loaded are the bytes that were compared.
#
# A file can be replaced after its verification. So it is read once, into private memory, and hashed there; its tensors
# are views of that memory.

CHUNK_BYTES = 1 << 20
_TORCH = {safetensors: getattr(torch, ours) for ours, safetensors in DTYPES.items()}


def read(folder: Path, name: str, digests: Mapping[str, str]) -> NDArray[np.uint8]:
    """Return the bytes of a file as an array, after comparing its SHA-256 with `digests`.

    Raises:
        CheckpointError: the file's digest is unknown, or its bytes have another digest.
        OSError: the file cannot be read.
    """
    digest, path = hashlib.sha256(), folder / name
    with path.open("rb", buffering=0) as stream:
        data = np.empty(os.fstat(stream.fileno()).st_size, np.uint8)
        view, at = data.data, 0
        while size := stream.readinto(view[at : at + CHUNK_BYTES]):
            digest.update(view[at : at + size])
            at += size
    if digest.hexdigest() != digests.get(name):
        raise CheckpointError(
            f"{path} differs from the verified file",
            found=f"SHA-256 {digest.hexdigest()}",
            expected=f"SHA-256 {digests[name]}" if name in digests else f"one of {', '.join(sorted(digests))}",
            remedy="do not use this model: the file was replaced during or after its verification",
        )
    return data


class CheckedTensors:
    """Tensors of a safetensors file in memory, with the methods of `safetensors.safe_open`.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: the bytes are not in the safetensors format.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        start, body = 8 + int.from_bytes(data[:8].tobytes(), "little"), torch.from_numpy(data)
        found = tensor_file.read_header(data[8:start].tobytes(), len(data))
        self._tensors = {name: _tensor(body, place) for name, place in found.items()}

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor as a view of the file's bytes."""
        return self._tensors[name]

    def get_slice(self, name: str) -> CheckedRows:
        """Return a tensor with the interface of a safetensors slice: it has a shape, and is sliced by rows."""
        return CheckedRows(self._tensors[name])


class CheckedRows:
    """One tensor of a safetensors file, with the interface of a safetensors slice."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._tensor.shape)

    def __getitem__(self, rows: Any) -> Tensor:
        return self._tensor[rows]


def _tensor(body: Tensor, place: tensor_file.TensorPlace) -> Tensor:
    found, kind = body[place.at : place.end], _TORCH[place.dtype]
    aligned = found if place.at % kind.itemsize == 0 else found.clone()
    return aligned.view(kind).reshape(place.shape)
