"""Charges that happen once, with the key API: run it against a semel and read along.

    python charge.py http://127.0.0.1:7081 [TOKEN]
"""

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from keys import Keys

BANK = Path(os.environ.setdefault("BANK", tempfile.mkdtemp() + "/bank"))


def bank(order: str, cents: int) -> str:
    """The effect, elsewhere: a line in the bank's books. The bank knows no keys."""
    with BANK.open("a") as books:
        books.write(f"{order} {cents}\n")
    return f"receipt of {order}"


def charge(keys: Keys, order: str, cents: int, then=lambda: None, **claim) -> str:
    """The receipt of the one charge of this order, whoever made it."""
    # Fresh for each attempt, and kept while it is repeated: a lost answer is asked for again under it.
    nonce = secrets.token_hex(16)
    status, answer = keys.ask("claim", order, input=f"{cents}", nonce=nonce, wait_ms=20_000, **claim)
    if status == 200:  # somebody has done it
        return answer["output"]
    if status != 201:  # it runs, it is unknown, or the order was charged with another amount
        raise Refused(answer)
    mine = {"token": answer["token"], "nonce": nonce}
    try:
        receipt = bank(order, cents)
    except ConnectionRefusedError:
        keys.ask("release", order, **mine)  # it is certain that nothing happened
        raise
    except Exception:
        keys.ask("abandon", order, **mine)  # nobody knows
        raise
    then()
    status, answer = keys.ask("complete", order, outcome="succeeded", output=receipt, **mine)
    if status != 200:
        raise Refused(answer)
    return receipt


class Refused(Exception):
    """What the API said instead."""

    def __init__(self, problem: dict):
        super().__init__(f"{problem['code']}: {problem['detail']}")
        self.problem = problem


def refusal(*arguments, **named) -> dict:
    try:
        charge(*arguments, **named)
    except Refused as refused:
        return refused.problem
    raise AssertionError("this should have been refused")


def lines(order: str) -> int:
    """How often the bank charged this order."""
    books = BANK.read_text() if BANK.exists() else ""
    return sum(line.startswith(f"{order} ") for line in books.splitlines())


def main(base: str, token: str | None, dies: bool = False) -> None:
    keys = Keys(base, "charges/shop", token)
    run = os.environ.setdefault("RUN", secrets.token_hex(4))
    a, b, c, d = (f"order-{run}-{name}" for name in "abcd")
    if dies:  # the child of below: charged, not completed, gone
        charge(keys, c, 4000, then=lambda: os._exit(9), lease_ms=500)

    first, again = charge(keys, a, 4000), charge(keys, a, 4000)
    assert first == again and lines(a) == 1
    print("a retry gets the first receipt; charged once")
    assert refusal(keys, a, 9999)["code"] == "SEM0709" and lines(a) == 1
    print("the same order with another amount is refused")

    receipts = []
    threads = [threading.Thread(target=lambda: receipts.append(charge(keys, b, 4000))) for _ in range(10)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert receipts == [f"receipt of {b}"] * 10 and lines(b) == 1
    print("ten at once: one charges, nine wait for its receipt")

    nonce = secrets.token_hex(16)
    claim = {"input": "1", "nonce": nonce}
    (_, one), (_, two) = keys.ask("claim", d, **claim), keys.ask("claim", d, **claim)
    assert one == two and one["result"] == "granted"
    keys.ask("release", d, nonce=nonce, token=one["token"])
    print("a claim whose answer was lost is asked for again under its nonce: same token")

    child = subprocess.run([sys.executable, __file__, base, token or "", "dies"])
    assert child.returncode == 9 and lines(c) == 1
    problem = refusal(keys, c, 4000)  # waits for the lease's end, and is told
    assert problem["code"] == "SEM0708" and lines(c) == 1
    print("a process died between charge and completion: unknown, and not charged again")
    found = {"verdict": "succeeded", "output": f"receipt of {c}"} if lines(c) else {"verdict": "did_not_happen"}
    keys.ask("settle", c, token=problem["token"], by="charge.py", why="looked in the bank's books", **found)
    assert charge(keys, c, 4000) == f"receipt of {c}" and lines(c) == 1
    print("settled by the bank's books: the retry gets the receipt; charged once")


if __name__ == "__main__":
    main(sys.argv[1], (sys.argv[2:] + [""])[0] or None, "dies" in sys.argv[3:])
