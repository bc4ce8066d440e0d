"""python3 test_orders.py DSN: the schema of Semel must be there. Prints one line per test."""

import sys
import threading
import uuid

import orders

DSN = sys.argv[1]


def count(db, tenant):
    return db.execute("SELECT count(*) AS n FROM orders WHERE tenant = %s", (tenant,)).fetchone()["n"]


def a_retry_gets_the_same_answer(place):
    with orders.connect(DSN) as db:
        tenant = str(uuid.uuid4())
        first = place(db, tenant, "k1", "teapot")
        again = place(db, tenant, "k1", "teapot")
        assert (first.status, first.replayed) == (201, False), first
        assert (again.status, again.replayed, again.body) == (201, True, first.body), again
        assert count(db, tenant) == 1


def another_request_under_the_key_is_refused(place):
    with orders.connect(DSN) as db:
        tenant = str(uuid.uuid4())
        place(db, tenant, "k1", "teapot")
        assert place(db, tenant, "k1", "kettle").status == 422
        assert count(db, tenant) == 1
        # Somebody else's key of the same name is another key.
        assert place(db, tenant + "b", "k1", "kettle").status == 201


def twenty_at_once_are_one(place):
    tenant = str(uuid.uuid4())
    answers = []

    def one():
        with orders.connect(DSN) as db:
            answers.append(place(db, tenant, "k1", "teapot"))

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with orders.connect(DSN) as db:
        assert count(db, tenant) == 1
    assert len(answers) == 20 and len({str(answer.body) for answer in answers}) == 1, answers
    assert sum(not answer.replayed for answer in answers) == 1, answers


def a_failure_leaves_nothing_and_the_retry_runs():
    with orders.connect(DSN) as db:
        tenant = str(uuid.uuid4())

        def fails():
            raise RuntimeError("out of stock")

        try:
            orders.place_order(db, tenant, "k1", "teapot", work=fails)
            raise AssertionError("it did not fail")
        except RuntimeError:
            pass
        assert count(db, tenant) == 0
        assert orders.place_order(db, tenant, "k1", "teapot").status == 201
        assert count(db, tenant) == 1


def a_charge_whose_answer_was_lost_is_not_made_again():
    with orders.connect(DSN) as db:
        tenant, calls = str(uuid.uuid4()), []

        def times_out(**call):
            calls.append(call)
            raise TimeoutError

        try:
            orders.charge(db, tenant, "k1", 4000, times_out)
            raise AssertionError("it did not fail")
        except TimeoutError:
            pass
        again = orders.charge(db, tenant, "k1", 4000, times_out)
        assert (again.status, again.body) == (409, {"problem": "unknown"}), again
        assert len(calls) == 1
        # A person looks at the provider's books and settles it.
        name = (orders.scope(db, tenant), b"charge:k1")
        token = db.execute("SELECT token FROM semel.outcome(%b, %b)", name).fetchone()["token"]
        settled = (*name, token, orders.encode({"receipt": 7}))
        db.execute("SELECT semel.settle(%b, %b, %s, 's', %b)", settled)
        assert orders.charge(db, tenant, "k1", 4000, times_out).body == {"receipt": 7}
        assert len(calls) == 1


def a_charge_that_was_never_sent_may_be_tried_again():
    with orders.connect(DSN) as db:
        tenant = str(uuid.uuid4())

        def refused(**_):
            raise ConnectionRefusedError

        assert orders.charge(db, tenant, "k1", 4000, refused).status == 503
        paid = orders.charge(db, tenant, "k1", 4000, lambda **call: {"receipt": call["idempotency_key"]})
        assert paid.status == 201, paid
        assert orders.charge(db, tenant, "k1", 4000, refused).replayed


def main():
    with orders.connect(DSN) as db:
        db.execute(orders.TABLES)
    for place in (orders.place_order, orders.place_order_optimistic):
        for test in (
            a_retry_gets_the_same_answer,
            another_request_under_the_key_is_refused,
            twenty_at_once_are_one,
        ):
            test(place)
            print("ok", test.__name__, "by", place.__name__, flush=True)
    for test in (
        a_failure_leaves_nothing_and_the_retry_runs,
        a_charge_whose_answer_was_lost_is_not_made_again,
        a_charge_that_was_never_sent_may_be_tried_again,
    ):
        test()
        print("ok", test.__name__, flush=True)


if __name__ == "__main__":
    main()
