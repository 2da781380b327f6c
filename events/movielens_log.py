"""MovieLens-1M as an interaction log: a rating is an event, a film an ad, and the site the only surface.

There are no exposures: every row is a film that the user chose to rate, so a label answers "given that they rate it,
do they rate it at least 4 (rating4), or 5 (rating5)?", and it is known at the event's own time (label_ms = event_ms).

Times are whole seconds and users rate whole pages of films at once: 1,000,209 ratings stand at 471,163 distinct (user,
second) pairs, and 77 % of them share theirs with another. Such a pair is one request. Histories need event_ms < t, so
ratings of one request do not see each other; no user rated everything within one second, and only 1.5 % of all rows
have no history (median: 118 earlier ratings). Half of all users were done within 70 minutes: what a model sees of a
user is mostly one long session. The order within a request is unknown; it follows the event's id.
"""

import numpy as np

from contracts.errors import InputError
from contracts.hashing import stable_hashes
from contracts.schema import Feature, FeatureSchema, Task
from events.log import InteractionLog
from events.movielens_source import Source
from events.tables import Checked

SURFACES = ("other", "site")
"""The first is the pool of unknown surfaces that every schema has; no rating stands on it."""
TASKS = {"rating4": 4, "rating5": 5}
"""Task -> least number of stars."""
USER_BUCKETS, AD_BUCKETS = 65_536, 65_536
YEAR_EDGES = (1930, 1940, 1950, 1960, 1970, 1975, 1980, 1984, 1987, 1990, *range(1992, 2001))
"""First year of each bucket but the lowest: decades first, single years where most films are."""
ZIP_AREAS = 1_001
"""Codes of the first three digits of a zip code (a sorting area of the US post), 0 for other codes."""


def build_log(source: Source) -> InteractionLog:
    """The log in order of time; InputError when a rating names a user or film that the other files lack."""
    user_ids, ad_ids = source.users.ids("user_id:token"), source.items.ids("item_id:token")
    user = source.ratings.codes("user_id:token", user_ids, source.users.path).astype(np.int32)
    ad = source.ratings.codes("item_id:token", ad_ids, source.items.path).astype(np.int32)
    stars = source.ratings.numbers("rating:float", np.int64)
    event_ms = source.ratings.numbers("timestamp:float", np.int64) * 1_000
    event_id, request_id = _ids(user_ids[user], ad_ids[ad], event_ms)
    if len(np.unique(event_id)) != len(event_id):
        raise InputError(f"{source.ratings.path} repeats a rating of one user, film and second; fetch the file again")
    order = np.lexsort((event_id, event_ms))
    event_ms, rows = event_ms[order], len(order)
    user_features, user_specs = _user_features(source.users)
    ad_features, ad_specs = _film_features(source.items)
    return InteractionLog(
        schema=FeatureSchema(
            name="movielens",
            surfaces=SURFACES,
            tasks=tuple(Task(task) for task in TASKS),
            features=(*user_specs, *ad_specs),
            user_buckets=USER_BUCKETS,
            ad_buckets=AD_BUCKETS,
        ),
        user_ids=user_ids,
        ad_ids=ad_ids,
        user_features=user_features,
        ad_features=ad_features,
        campaign=source.items.texts("genre:token").astype(object),
        objective=np.full(len(ad_ids), next(iter(TASKS)), dtype=object),
        default_bid=np.ones(len(ad_ids), dtype=np.float32),
        offset=np.arange(rows, dtype=np.int64),
        event_id=event_id[order],
        request_id=request_id[order],
        user=user[order],
        ad=ad[order],
        surface=np.full(rows, SURFACES.index("site"), dtype=np.int16),
        event_ms=event_ms,
        ingested_ms=event_ms,
        bid=np.ones(rows, dtype=np.float32),
        context={},
        labels={task: (stars[order] >= least).astype(np.int8) for task, least in TASKS.items()},
        label_ms=dict.fromkeys(TASKS, event_ms),
    )


def _ids(user: np.ndarray, ad: np.ndarray, event_ms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """event_id and request_id of every rating: uint64 [T] each. A request is what one user rated within one second."""
    requests = [f"{u}|{t}" for u, t in zip(user.tolist(), event_ms.tolist(), strict=True)]
    events = (f"{request}|{a}" for request, a in zip(requests, ad.tolist(), strict=True))
    return stable_hashes(events), stable_hashes(requests)


def _user_features(users: Checked) -> tuple[dict[str, np.ndarray], tuple[Feature, ...]]:
    """What the user said when they registered: the teacher's alone, as in the other sources."""
    zips = users.texts("zip_code:token").tolist()
    area = [1 + int(code[:3]) if len(code) >= 5 and code[:5].isdecimal() else 0 for code in zips]
    coded = {
        "gender": _codes(users.texts("gender:token")),
        "age": _codes(users.numbers("age:float", np.int64)),
        "occupation": _codes(users.numbers("occupation:float", np.int64)),
    }
    values, specs = {}, []
    for name, (codes, kinds) in coded.items():
        values[name] = codes
        specs.append(Feature(name, "user", cardinality=kinds, teacher_only=True))
    values["zip_area"] = np.array(area, dtype=np.int32)
    values["zip_region"] = np.where(values["zip_area"] > 0, 1 + (values["zip_area"] - 1) // 100, 0).astype(np.int32)
    specs.append(Feature("zip_area", "user", cardinality=ZIP_AREAS, teacher_only=True))
    specs.append(Feature("zip_region", "user", cardinality=11, teacher_only=True))
    return values, tuple(specs)


def _film_features(items: Checked) -> tuple[dict[str, np.ndarray], tuple[Feature, ...]]:
    """A film's genres, once as a set that has a code of its own and once as 0/1 each, and the years of its release."""
    texts = items.texts("genre:token")
    genres_of = [set(text.split()) for text in texts.tolist()]
    names = sorted(set().union(*genres_of))
    sets, kinds = _codes(texts)
    year = items.numbers("release_year:float", np.int64)
    values = {"genres": sets, "year": (1 + np.digitize(year, YEAR_EDGES)).astype(np.int32)}
    specs = [Feature("genres", "ad", cardinality=kinds), Feature("year", "ad", cardinality=len(YEAR_EDGES) + 2)]
    for name in names:
        column = "genre_" + "".join(letter for letter in name.lower() if letter.isalnum())
        values[column] = np.array([name in genres for genres in genres_of], dtype=np.float32)
        specs.append(Feature(column, "ad", "float"))
    return values, tuple(specs)


def _codes(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Codes 1, 2, ... in the order of the values, and the cardinality (0 is the unknown one)."""
    kinds, inverse = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    return (1 + inverse).astype(np.int32), len(kinds) + 1
