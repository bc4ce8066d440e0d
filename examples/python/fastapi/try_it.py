"""Starts the app on a free port, kills it in the middle, and counts orders.

    python try_it.py postgres://app@127.0.0.1/shop
"""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys

import httpx
import psycopg


class Shop:
    """The app as a process, started again when it has died."""

    def __init__(self, dsn: str):
        self.dsn, self.process = dsn, None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    async def __aenter__(self):
        uvicorn = ("-m", "uvicorn", "app:app", "--port", str(self.port), "--log-level", "error")
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen((sys.executable, *uvicorn), cwd=here, env={**os.environ, "SHOP_DSN": self.dsn})
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", self.port))[1].close()
                return self
            except OSError:
                assert self.process.poll() is None, "the app does not start"
                await asyncio.sleep(0.05)

    async def __aexit__(self, *_):
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)

    async def order(self, key: str, item: str, die: str = "") -> httpx.Response:
        headers = {"idempotency-key": key, "x-user": "ada", "x-die": die}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"http://127.0.0.1:{self.port}/orders"
            return await client.post(url, headers=headers, content=json.dumps({"item": item}))


async def main(dsn: str) -> None:
    run = secrets.token_hex(4)

    def orders(item: str) -> int:
        with psycopg.connect(dsn) as db:
            return db.execute("SELECT count(*) FROM shop_order WHERE item = %s", (item,)).fetchone()[0]

    shop = Shop(dsn)
    async with shop:
        item = f"teapot-{run}"
        first, again = await shop.order(f"a-{run}", item), await shop.order(f"a-{run}", item)
        assert (first.status_code, again.status_code) == (201, 201) and first.content == again.content
        assert again.headers["idempotent-replayed"] == "true" and orders(item) == 1
        print("a retry gets the stored answer; ordered once")
        assert (await shop.order(f"a-{run}", "kettle")).status_code == 422
        print("the key with another body is refused")

        item = f"cup-{run}"
        answers = await asyncio.gather(*(shop.order(f"b-{run}", item) for _ in range(10)))
        assert {answer.content for answer in answers} == {answers[0].content} and orders(item) == 1
        print("ten at once: ordered once, ten equal answers")

    for die, left in (("before", 0), ("after", 1)):
        item = f"pan-{die}-{run}"
        async with shop:
            try:
                await shop.order(f"{die}-{run}", item, die)
                raise AssertionError("it should have died")
            except httpx.HTTPError:
                assert orders(item) == left
        async with shop:
            assert (await shop.order(f"{die}-{run}", item)).status_code == 201 and orders(item) == 1
        print(f"the app died {die} the commit; the retry after its restart: ordered once")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
