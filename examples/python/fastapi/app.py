"""Orders over HTTP. The key, the order and the answer commit in one transaction of the service's own.

    SHOP_DSN=postgres://app@127.0.0.1/shop uvicorn app:app
"""

import json
import os
from contextlib import asynccontextmanager

import psycopg
from fastapi import FastAPI, Header, Request, Response
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

TABLE = "CREATE TABLE IF NOT EXISTS shop_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)"


@asynccontextmanager
async def life(app: FastAPI):
    settings = {"row_factory": dict_row, "prepare_threshold": None}
    async with AsyncConnectionPool(os.environ["SHOP_DSN"], kwargs=settings, max_size=5) as app.state.pool:
        async with app.state.pool.connection() as db:
            await db.execute(TABLE)
        yield


app = FastAPI(lifespan=life)


@app.post("/orders", status_code=201)
async def place(request: Request, idempotency_key: str = Header(), x_user: str = Header(), x_die: str = Header("")):
    """A retry gets the stored answer; a failure or crash before the commit leaves nothing."""
    body = await request.body()
    # Where keys are unique: this API and who asks, as your authentication says. Here: a header.
    key = (b"orders", x_user.encode(), idempotency_key.encode())
    async with request.app.state.pool.connection() as db:
        try:
            async with db.transaction():
                await db.execute("SET LOCAL lock_timeout = '5s'")  # a duplicate waits here for the first one's end
                once = "SELECT * FROM semel.once(semel.scope_of(%b, %b), %b, semel.fingerprint(%b))"
                found = await one(db, once, *key, body)
                if found["verdict"] != "first":
                    return told(found)
                order = await one(db, "INSERT INTO shop_order (item) VALUES (%s) RETURNING id", json.loads(body)["item"])
                if x_die == "before":
                    os._exit(9)
                answer = json.dumps({"order": order["id"]}).encode()
                done = "SELECT semel.once_done(semel.scope_of(%b, %b), %b, %s, %b)"
                await db.execute(done, (*key, found["token"], answer))
        except psycopg.errors.LockNotAvailable:
            return problem(409, "the first request is still running")
    if x_die == "after":
        os._exit(9)
    return Response(answer, 201, media_type="application/json")


async def one(db, query, *values):
    return await (await db.execute(query, values)).fetchone()


def told(found: dict) -> Response:
    """The answer to a duplicate."""
    match found["verdict"]:
        case "done":
            replayed = {"idempotent-replayed": "true"}
            return Response(bytes(found["outcome"]), 201, replayed, "application/json")
        case "mismatch":
            return problem(422, "the key was used for another request")
        case "gone":
            return problem(410, "it was done; the answer is not kept")
        case verdict:
            return problem(409, verdict)


def problem(status: int, title: str) -> Response:
    body = json.dumps({"title": title, "status": status}).encode()
    return Response(body, status, media_type="application/problem+json")
