"""A made-up folder of MovieLens-1M's atomic files: a few rows in every period, with the traps of the real ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from events.movielens_source import INTER, ITEM, USER

INTER_HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
USERS = (
    "user_id:token\tage:float\tgender:token\toccupation:float\tzip_code:token",
    "1m_1\t1\tF\t10\t01067",
    "1m_2\t56\tM\t16\t98107-2117",
    "1m_3\t25\tM\t15\tM5V",
)
ITEMS = (
    "item_id:token\tmovie_title:token\trelease_year:float\tgenre:token",
    "Toy Story (1995)\tToy Story\t1995\tAnimation Children's Comedy",
    'The "Maze" (1929)\tThe "Maze"\t1929\tFilm-Noir',
    "Café (2000)\tCafé\t2000\tComedy",
    "Never Rated (1988)\tNever Rated\t1988\tComedy",
)
TOY_STORY, MAZE, CAFE = (line.split("\t")[0] for line in ITEMS[1:4])


def at(year: int, month: int, day: int, second: int = 0) -> int:
    """Seconds since 1970 of a second of a UTC day."""
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) + second


@dataclass(frozen=True)
class Rating:
    user: str
    film: str
    stars: int
    second: int


RATINGS = (
    Rating("1m_2", MAZE, 4, at(2000, 12, 2, 86_399)),
    Rating("1m_1", TOY_STORY, 5, at(2000, 4, 26)),
    Rating("1m_1", CAFE, 3, at(2000, 4, 26)),
    Rating("1m_1", MAZE, 4, at(2000, 4, 26, 1)),
    Rating("1m_2", TOY_STORY, 1, at(2000, 12, 3)),
    Rating("1m_3", TOY_STORY, 5, at(2001, 1, 5)),
    Rating("1m_3", CAFE, 2, at(2002, 7, 1)),
)


def write_atomic(folder: Path, ratings: Sequence[Rating] = RATINGS) -> Path:
    """The folder, with line ends as in the real files."""
    folder.mkdir(parents=True)
    rows = (f"{r.user}\t{r.film}\t{r.stars}\t{r.second}" for r in ratings)
    for name, lines in ((INTER, (INTER_HEAD, *rows)), (USER, USERS), (ITEM, ITEMS)):
        (folder / name).write_bytes("".join(f"{line}\r\n" for line in lines).encode())
    return folder
