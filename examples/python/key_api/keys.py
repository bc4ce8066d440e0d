"""The key API of semel in forty lines of the standard library."""

import json
import time
import urllib.error
import urllib.request


class Keys:
    """Talks to `[api]` of a semel; `scope` is where this service's ids are unique."""

    def __init__(self, base: str, scope: str, token: str | None = None):
        self.base, self.scope = base, scope
        self.headers = {"content-type": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def ask(self, operation: str, id: str, **fields) -> tuple[int, dict]:
        """Status and body. What may have been lost is sent again as it was: every operation allows that."""
        body = json.dumps({"scope": self.scope, "id": id, **fields}).encode()
        request = urllib.request.Request(f"{self.base}/v1/keys/{operation}", body, self.headers)
        for last in (False, False, False, False, True):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as refused:
                if refused.code != 503 or last:
                    return refused.code, json.load(refused)
                wait = int(refused.headers.get("retry-after", "1"))
            except OSError:
                if last:
                    raise
                wait = 1
            time.sleep(wait)
        raise AssertionError("unreachable")
