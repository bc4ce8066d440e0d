"""Orders through the gateway, again and again.

    python try_it.py http://127.0.0.1:8080 orders.txt
"""

import json
import secrets
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path


def order(key: str, item: str, **more) -> tuple[int, dict, dict]:
    """Status, headers and body of one attempt."""
    headers = {"content-type": "application/json", "idempotency-key": f'"{key}"', "x-user": "ada"}
    body = json.dumps({"item": item, **more}).encode()
    request = urllib.request.Request(GATEWAY + "/orders", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers, json.load(refused)


def written(item: str) -> int:
    return BOOKS.read_text().splitlines().count(item)


def main() -> None:
    run = secrets.token_hex(4)
    teapot, kettle, cup, pan = (f"{item}-{run}" for item in ("teapot", "kettle", "cup", "pan"))

    first, again = order(f"a-{run}", teapot), order(f"a-{run}", teapot)
    assert first[0] == again[0] == 201 and first[2] == again[2], (first, again)
    assert again[1]["idempotent-replayed"] == "true" and written(teapot) == 1
    print("a retry gets the first answer, byte for byte; ordered once")

    assert order(f"a-{run}", kettle)[0] == 422 and written(kettle) == 0
    print("the key with another body is refused; nothing ordered")

    answers = []
    threads = [threading.Thread(target=lambda: answers.append(order(f"b-{run}", cup))) for _ in range(10)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {status for status, _, _ in answers} <= {201, 409} and written(cup) == 1, answers
    print("ten at once: ordered once")

    status, headers, _ = order(f"c-{run}", pan, die=True)  # the shop dies between the effect and the answer
    assert status == 502 and headers["semel-outcome"] == "unknown", (status, headers)
    status, headers, problem = order(f"c-{run}", pan, die=True)
    # Running until the key's lease ends, unknown from then on: either way the shop is not asked.
    assert status == 409 and headers["semel-outcome"] in ("running", "unknown") and written(pan) == 1, problem
    print("the shop died before it answered: held, and not ordered again")


if __name__ == "__main__":
    GATEWAY, BOOKS = sys.argv[1], Path(sys.argv[2])
    main()
