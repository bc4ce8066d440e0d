#!/usr/bin/env python3
"""The classic holes of Idempotency-Key implementations, as a black-box test over HTTP.

  python3 holes.py NAME --cmd "server command" [--base 127.0.0.1:18090] [--lease-ms 1500] [--session] [--json FILE]
  python3 holes.py --table FILE.json …        merges results into one Markdown table

The server is started with $LISTEN, $EFFECTS (a log file) and $LEASE_MS (the shortest lease it should use) set, and must offer
  GET  /health
  POST /orders and POST /other   (both behind the layer under test), steered by request headers:
       x-test-op: name of the effect; each run of the handler appends this name to $EFFECTS (or inserts one row) FIRST
       x-test-sleep: ms to sleep after the effect;  x-test-status: status to answer (default 201)
       x-test-crash: before | after   die at once, before or after the effect
       x-test-latin1: 1   add a response header with a byte above 127
     the answer carries Location, ETag, two Link lines, two Set-Cookie lines and a JSON body with "who" = Authorization
  GET  /effects?op=NAME          how often the effect happened
These steering headers must not enter the fingerprint. With --session a cookie is fetched from POST /session for each user.
"""
import argparse, contextlib, http.client, json, os, shlex, signal, socket, subprocess, sys, threading, time, uuid

a = argparse.ArgumentParser()
a.add_argument("name", nargs="?"); a.add_argument("--cmd"); a.add_argument("--base", default="127.0.0.1:18090")
a.add_argument("--lease-ms", type=int, default=1500); a.add_argument("--session", action="store_true"); a.add_argument("--json")
a.add_argument("--table", nargs="+"); a.add_argument("--work", default=os.environ.get("WORK", "."))
A = a.parse_args()

if A.table:
    cols = [json.load(open(f)) for f in A.table]
    names = list(cols[0]["results"])
    print("| | " + " | ".join(c["name"] for c in cols) + " |\n|---" * 1 + "|" + "---|" * len(cols))
    for n in names:
        print(f"| {n} | " + " | ".join(c["results"].get(n, "–") for c in cols) + " |")
    sys.exit()

HOST, PORT = A.base.split(":"); PORT = int(PORT)
BODY = b'{"amount":100,"currency":"EUR"}'
cookies = {}
proc = None

def start():
    global proc
    env = {**os.environ, "LISTEN": A.base, "EFFECTS": f"{A.work}/holes.{A.name}.log", "LEASE_MS": str(A.lease_ms), "SQLITE_PATH": f"{A.work}/holes.{A.name}.sqlite"}
    proc = subprocess.Popen(shlex.split(A.cmd), env=env, stdout=subprocess.DEVNULL, stderr=open(f"{A.work}/holes.{A.name}.err", "a"))
    for _ in range(200):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get("/health")[0] == 200: return
        time.sleep(0.05)
    proc.kill(); proc.wait()
    raise SystemExit("did not start")
def ensure_dead():
    try: proc.wait(3)
    except subprocess.TimeoutExpired: proc.kill(); proc.wait()

def get(path):
    c = http.client.HTTPConnection(HOST, PORT, timeout=5); c.request("GET", path); r = c.getresponse(); d = r.read(); c.close(); return r.status, d
def effects(op): return int(get(f"/effects?op={op}")[1])

def raw(op, keys, who="alice", path="/orders", body=BODY, **h):
    l = [f"POST {path} HTTP/1.1", f"Host: {A.base}", "Content-Type: application/json", f"Content-Length: {len(body)}", f"Authorization: Bearer {who}", f"x-test-op: {op}", "Connection: close"]
    if who in cookies: l.append("Cookie: " + cookies[who])
    l += [f"Idempotency-Key: {k}" for k in keys]
    l += [f"x-test-{k}: {v}" for k, v in h.items()]
    return "\r\n".join(l).encode() + b"\r\n\r\n" + body

class Resp:
    def __init__(s, status, headers, body): s.status, s.headers, s.body = status, headers, body
    def all(s, n): return [v for k, v in s.headers if k == n]
    def __repr__(s): return f"{s.status}"

def send(op, key, who="alice", timeout=8, **kw):
    keys = key if isinstance(key, list) else [] if key is None else [key]
    s = socket.create_connection((HOST, PORT), timeout=timeout)
    try:
        s.sendall(raw(op, keys, who, **kw))
        r = http.client.HTTPResponse(s); r.begin(); b = r.read()
        return Resp(r.status, [(k.lower(), v) for k, v in r.getheaders()], b)
    except socket.timeout: return Resp("timeout", [], b"")
    except (OSError, http.client.HTTPException): return Resp("reset", [], b"")
    finally: s.close()

def new(): u = uuid.uuid4().hex; return "op" + u[:12], str(uuid.uuid4())
def session(who):
    c = http.client.HTTPConnection(HOST, PORT, timeout=5); c.request("POST", "/session", b"", {"Authorization": f"Bearer {who}"}); r = c.getresponse(); r.read()
    cookies[who] = r.getheader("set-cookie").split(";")[0]; c.close()
def sessions():
    if A.session:
        for w in ("alice", "bob"): session(w)

R = {}
def t_replay():
    op, k = new(); r1, r2 = send(op, k), send(op, k); n = effects(op)
    mark = [h for h, v in r2.headers if "replay" in h]
    return f"{'yes' if n == 1 and r2.body == r1.body and r2.status == r1.status else 'NO'} ({r1.status}→{r2.status}, {n} run{'s' * (n != 1)}, marker {mark[0] if mark else 'none'})"
def burst(op, k, n=20, **h):
    """n requests on connections opened beforehand, written back to back."""
    ss = [socket.create_connection((HOST, PORT), timeout=8) for _ in range(n)]
    time.sleep(0.05)
    for s in ss: s.sendall(raw(op, [k], **h))
    out = []
    for s in ss:
        try: r = http.client.HTTPResponse(s); r.begin(); r.read(); out.append(r.status)
        except (OSError, http.client.HTTPException): out.append("reset")
        s.close()
    return out
def t_concurrent():
    runs, out = [], []
    for _ in range(10):
        op, k = new(); out += burst(op, k, sleep=100); runs.append(effects(op))
    return f"{'no' if max(runs) == 1 else 'YES'} (10 bursts of 20: {min(runs)}–{max(runs)} runs each; " + " ".join(f"{out.count(c)}×{c}" for c in sorted(set(out), key=str)) + ")"
def gone(half):
    op, k = new(); s = socket.create_connection((HOST, PORT)); s.sendall(raw(op, [k], sleep=600)); time.sleep(0.2)
    if half: s.shutdown(socket.SHUT_WR)
    else: s.close()
    time.sleep(1.2); r = send(op, k); n = effects(op)
    if half: s.close()
    return f"{'no' if n == 1 and r.status == 201 else 'YES' if n > 1 else 'stuck'} ({n} run{'s' * (n != 1)}, retry {r.status})"
def crash(where):
    op, k = new(); send(op, k, crash=where); ensure_dead(); start(); 
    if A.session: sessions_keep()
    r1 = send(op, k); time.sleep(A.lease_ms / 1000 + 0.7); r2 = send(op, k); n = effects(op)
    # Semel's word for an effect that may be there: the key is held, and a person or a hook settles it.
    if r2.all("semel-outcome") == ["unknown"]: v = "held as unknown"
    elif where == "after": v = "once" if n == 1 and r2.status == 201 else "RUNS TWICE" if n > 1 else "STUCK"
    else: v = "recovers" if n == 1 and r2.status == 201 else "STUCK" if n == 0 else "?"
    return f"{v} ({n} run{'s' * (n != 1)}; retry at once {r1.status}, after lease {r2.status})"
def sessions_keep():
    # a memory session store forgets: then the client is given a new session, as a login would
    with contextlib.suppress(Exception):
        op, k = new(); send(op, k); send(op, k)
        if effects(op) != 1: sessions()
def t_body():
    op, k = new(); r1 = send(op, k); r2 = send(op, k, body=b'{"amount":999999,"currency":"EUR"}'); n = effects(op)
    return f"refused {r2.status}" if r2.status in (400, 409, 417, 422) else f"{'RUNS' if n > 1 else 'REPLAYS FIRST ANSWER'} ({r2.status})"
def t_path():
    op, k = new(); send(op, k); r2 = send(op, k, path="/other"); n = effects(op)
    return f"refused {r2.status}" if r2.status in (400, 409, 417, 422) else f"{'separate record' if n > 1 else 'REPLAYS FIRST ANSWER'} ({r2.status})"
def t_user():
    op, k = new(); send(op, k); r2 = send(op, k, who="bob"); n = effects(op)
    return f"{'LEAKS' if b'alice' in r2.body else 'separate' if n > 1 else 'refused'} ({r2.status})"
def t_status(st):
    def f():
        op, k = new(); r1 = send(op, k, status=st); r2 = send(op, k, status=st); n = effects(op)
        unknown = n == 1 and r2.all("semel-outcome") == ["unknown"]
        v = "held as unknown" if unknown else "stored" if n == 1 and r2.status == st else "re-runs" if n == 2 else "rolled back, re-runs" if n == 0 else "blocked"
        return f"{v} ({r1.status}→{r2.status})"
    return f
def t_quote():
    op, k = new(); send(op, k); r2 = send(op, f'"{k}"'); n = effects(op)
    return f"{'same record' if n == 1 and r2.status == 201 else 'TWO RECORDS' if n == 2 else 'refused'} ({r2.status})"
def t_key(k):
    def f():
        op, _ = new(); kk = k() if callable(k) else k; r1 = send(op, kk); r2 = send(op, kk); n = effects(op)
        return f"{r1.status}" + (f", {n} runs in 2" if n else "")
    return f
def t_headers():
    op, k = new(); r1, r2 = send(op, k), send(op, k)
    lost = [h for h in ("location", "etag", "content-type") if r1.all(h) != r2.all(h)]
    if r1.all("link") != r2.all("link"): lost.append("a Link line" if r2.all("link") else "link")
    sc = "set-cookie"; ck = r2.all(sc)
    return f"{'kept' if not lost else 'LOST ' + ', '.join(lost)}; Set-Cookie {'dropped' if not ck else f'{len(ck)} of {len(r1.all(sc))} replayed'}"
def t_latin1():
    op, k = new(); r1, r2 = send(op, k, latin1=1), send(op, k, latin1=1); n = effects(op)
    return f"{'RE-RUNS' if n > 1 else 'ok' if r2.status == r1.status and r1.all('x-name') == r2.all('x-name') else 'header lost' if r2.status == r1.status else 'breaks'} ({r1.status}→{r2.status})"
def t_lease():
    # the handler outlives the lease; a duplicate comes after the lease ended and before the first finished
    op, k = new(); t = threading.Thread(target=lambda: send(op, k, sleep=A.lease_ms + 1500)); t.start()
    time.sleep(A.lease_ms / 1000 + 0.5); r = send(op, k); t.join(); n = effects(op)
    return f"{n} run{'s' * (n != 1)} (duplicate {r.status})"

TESTS = [("sequential retry replays", t_replay), ("concurrent duplicates run twice?", t_concurrent),
    ("client closes mid-request, retries: runs twice?", lambda: gone(False)), ("client half-closes mid-request, retries: runs twice?", lambda: gone(True)),
    ("crash after effect, before record", lambda: crash("after")), ("crash after claim, before effect", lambda: crash("before")),
    ("handler outlives lease, duplicate arrives", t_lease),
    ("same key, other body", t_body), ("same key, other path", t_path), ("other user's same key", t_user),
    ("500 stored?", t_status(500)), ("503 stored?", t_status(503)), ("400 stored?", t_status(400)), ("404 stored?", t_status(404)), ("422 stored?", t_status(422)),
    ('"k" after k', t_quote), ("no key", t_key(None)), ("empty key", t_key("")), ("two key lines", t_key(lambda: [str(uuid.uuid4()), str(uuid.uuid4())])),
    ("5000-byte key", t_key(lambda: "k" * 4968 + uuid.uuid4().hex)), ("headers on replay", t_headers), ("latin-1 response header", t_latin1)]
with contextlib.suppress(OSError): os.unlink(f"{A.work}/holes.{A.name}.log")
start(); sessions()
try:
    for n, f in TESTS:
        try:
            if proc.poll() is not None: start(); sessions()
            R[n] = f()
        except Exception as e: R[n] = f"test error {type(e).__name__}: {e}"
        print(f"{n:52} {R[n]}", flush=True)
finally:
    proc.send_signal(signal.SIGTERM); ensure_dead()
if A.json: json.dump({"name": A.name, "results": R}, open(A.json, "w"), indent=1)
