"""Orders and charges that happen once, however often they are asked for."""

import json
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, item text);
"""


def connect(dsn: str) -> psycopg.Connection:
    # A pooler in transaction mode may know no prepared statements: prepare none.
    return psycopg.connect(dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None)


@dataclass
class Answer:
    status: int
    body: dict
    replayed: bool = False


def scope(db: psycopg.Connection, tenant: str) -> bytes:
    """Where keys are unique: the API and who asks. Never a token, never a cookie."""
    return db.execute("SELECT semel.scope_of(%b, %b) AS it", (b"orders", tenant.encode())).fetchone()["it"]


def fingerprint(db: psycopg.Connection, *parts: str) -> bytes:
    """What was asked: the same key with another request is a mismatch."""
    query = "SELECT semel.fingerprint(VARIADIC %b::bytea[]) AS it"
    return db.execute(query, ([part.encode() for part in parts],)).fetchone()["it"]


def place_order(db: psycopg.Connection, tenant: str, key: str, item: str, work=None) -> Answer:
    """Mark, order and answer commit together, or nothing does."""
    name = (scope(db, tenant), key.encode())
    asked = fingerprint(db, "place_order", item)
    with db.transaction():
        # Do not hold a connection for ever behind a slow duplicate.
        db.execute("SET LOCAL lock_timeout = '5s'")
        try:
            once = db.execute("SELECT * FROM semel.once(%b, %b, %b)", (*name, asked)).fetchone()
        except psycopg.errors.LockNotAvailable:
            return Answer(409, {"problem": "still running"})
        if once["verdict"] != "first":
            return told(once)
        body = insert(db, tenant, item)
        if work:
            work()
        db.execute("SELECT semel.once_done(%b, %b, %s, %b)", (*name, once["token"], encode(body)))
    return Answer(201, body)


def place_order_optimistic(db: psycopg.Connection, tenant: str, key: str, item: str) -> Answer:
    """The work first, the finished record last: all effects are in this transaction, so a duplicate's are taken back."""
    name = (scope(db, tenant), key.encode())
    asked = fingerprint(db, "place_order", item)
    try:
        with db.transaction():
            body = insert(db, tenant, item)
            db.execute("SELECT semel.once_last(%b, %b, %b, %b)", (*name, asked, encode(body)))
    except psycopg.Error as error:
        if error.sqlstate != "SM212":
            raise
        if error.diag.message_detail == "mismatch":
            return Answer(422, {"problem": "the key was used for another request"})
        stored = db.execute("SELECT * FROM semel.outcome(%b, %b)", name).fetchone()
        return told({**stored, "verdict": stored["state"]})
    return Answer(201, body)


def charge(db: psycopg.Connection, tenant: str, key: str, cents: int, provider) -> Answer:
    """The effect is elsewhere: claim it, durably, before the call; say what came of it after."""
    name = (scope(db, tenant), b"charge:" + key.encode())
    asked = fingerprint(db, "charge", str(cents))
    # Autocommit: the claim is committed when this answers.
    claim = db.execute("SELECT * FROM semel.claim(%b, %b, %b)", (*name, asked)).fetchone()
    if claim["verdict"] != "granted":
        return told(claim)
    run = (*name, claim["token"], claim["nonce"])
    try:
        # The provider gets a key of its own that never changes for this charge.
        receipt = provider(idempotency_key="%s/%s" % (tenant, key), cents=cents)
    except ConnectionRefusedError:
        # Nothing was sent: it is certain that nothing happened.
        db.execute("SELECT semel.release(%b, %b, %b, %s)", (*name, claim["nonce"], claim["token"]))
        return Answer(503, {"problem": "the provider cannot be reached"})
    except Exception:
        # It may have happened. The key is unknown from now on; a person settles it.
        db.execute("SELECT semel.abandon(%b, %b, %s, %b)", run)
        raise
    done = db.execute("SELECT * FROM semel.complete(%b, %b, %s, %b, %b)", (*run, encode(receipt))).fetchone()
    if done["verdict"] != "ok":
        # Somebody settled it meanwhile: answer what the record says.
        stored = db.execute("SELECT * FROM semel.outcome(%b, %b)", name).fetchone()
        return told({**stored, "verdict": stored["state"]})
    return Answer(201, receipt)


def insert(db, tenant, item) -> dict:
    row = db.execute("INSERT INTO orders (tenant, item) VALUES (%s, %s) RETURNING id", (tenant, item)).fetchone()
    return {"order": row["id"], "item": item}


def told(row: dict) -> Answer:
    """The answer to a duplicate."""
    match row["verdict"]:
        case "done" if row["outcome_code"] == "f":
            return Answer(200, {"problem": "done, the answer was not kept"}, replayed=True)
        case "done":
            return Answer(201, json.loads(bytes(row["outcome"])), replayed=True)
        case "busy" | "claimed":
            return Answer(409, {"problem": "still running"})
        case "mismatch":
            return Answer(422, {"problem": "the key was used for another request"})
        case "gone" | "tombstone":
            return Answer(410, {"problem": "done long ago"})
        case other:
            return Answer(409, {"problem": other})


def encode(body: dict) -> bytes:
    return json.dumps(body).encode()
