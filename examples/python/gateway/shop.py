"""A shop that knows nothing of idempotency keys.

    python shop.py 9001 orders.txt
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with BOOKS.open("a") as books:  # the effect
            books.write(order["item"] + "\n")
        if order.get("die"):
            os._exit(9)  # written, not answered
        number = BOOKS.read_text().count("\n")
        # Semel-Token grows with every attempt of a key: a store behind this shop could refuse older ones.
        body = json.dumps({"order": number, "item": order["item"]}).encode()
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    BOOKS = Path(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
