//! Layers as people write them by hand, right but for one thing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, SET_COOKIE};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use tokio::sync::OnceCell;

/// What is wrong with it. With nothing wrong it keeps all that is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// It looks at no key.
    NoDedup,
    /// It looks for a record first and writes it when the operation has ended.
    CheckThenAct,
    /// A record is found by the key alone, and nothing else is looked at.
    KeyOnly,
    /// Only the body's text is not compared.
    OtherBody,
    /// It keeps status and body.
    LosesHeaders,
    /// It keeps the last line of each header.
    LastLine,
    /// The operation dies with its client.
    DiesWithClient,
    /// One lock for all keys.
    OneLock,
    /// No key, an empty one and two are no fault.
    AnyKey,
    /// Keys are cut to 255 bytes.
    CutsKeys,
    /// Cookies are kept and handed out again.
    KeepsCookies,
}

type Name = (Vec<u8>, Vec<u8>);
type Asked = (String, Bytes);
type Stored = (StatusCode, HeaderMap, Bytes);
type Record = (Asked, Arc<OnceCell<Stored>>);

#[derive(Clone)]
struct Layer {
    fault: Fault,
    records: Arc<Mutex<HashMap<Name, Record>>>,
    all: Arc<tokio::sync::Mutex<()>>,
}

/// The operations behind such a layer.
pub(crate) fn behind(fault: Fault, operations: Router) -> Router {
    let layer = Layer {
        fault,
        records: Arc::default(),
        all: Arc::default(),
    };
    operations.layer(from_fn_with_state(layer, keyed))
}

fn plain(status: u16) -> Response<Body> {
    let mut answer = Response::new(Body::from("refused"));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

fn key(fault: Fault, headers: &HeaderMap) -> Result<Option<Vec<u8>>, ()> {
    let keys: Vec<&[u8]> = headers
        .get_all("idempotency-key")
        .iter()
        .map(|key| key.as_bytes())
        .collect();
    if fault == Fault::AnyKey && (keys.is_empty() || keys[0].is_empty()) {
        return Ok(None);
    }
    let key = *keys.first().ok_or(())?;
    let one = keys.len() == 1 || fault == Fault::AnyKey;
    let key = key
        .strip_prefix(b"\"")
        .and_then(|key| key.strip_suffix(b"\""))
        .unwrap_or(key);
    let key = if fault == Fault::CutsKeys {
        &key[..key.len().min(255)]
    } else {
        key
    };
    let good = one && !key.is_empty() && key.len() <= 255 && key.is_ascii();
    if good { Ok(Some(key.to_vec())) } else { Err(()) }
}

async fn keyed(State(layer): State<Layer>, request: Request, next: Next) -> Response<Body> {
    let fault = layer.fault;
    let key = match key(fault, request.headers()) {
        _ if fault == Fault::NoDedup => return next.run(request).await,
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(()) => return plain(400),
    };
    let who = request
        .headers()
        .get(AUTHORIZATION)
        .map(|who| who.as_bytes().to_vec());
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 1 << 20).await else {
        return plain(400);
    };
    let name = (
        if fault == Fault::KeyOnly {
            Vec::new()
        } else {
            who.unwrap_or_default()
        },
        key,
    );
    let asked = match fault {
        Fault::KeyOnly => Asked::default(),
        Fault::OtherBody => (parts.uri.to_string(), Bytes::new()),
        _ => (parts.uri.to_string(), body.clone()),
    };
    let request = Request::from_parts(parts, Body::from(body));
    let run = run(request, next);
    let found = layer.records.lock().unwrap().get(&name).cloned();
    if found.as_ref().is_some_and(|(first, _)| *first != asked) {
        return plain(422);
    }
    if let Some(stored) = found.as_ref().and_then(|(_, cell)| cell.get()) {
        return answer(&kept(fault, stored));
    }
    if fault == Fault::CheckThenAct {
        let stored = run.await;
        let cell = Arc::new(OnceCell::from(stored.clone()));
        layer.records.lock().unwrap().insert(name, (asked, cell));
        return answer(&stored);
    }
    let (first, cell) = {
        let mut records = layer.records.lock().unwrap();
        let record = records
            .entry(name)
            .or_insert_with(|| (asked.clone(), Arc::default()));
        record.clone()
    };
    if first != asked {
        return plain(422);
    }
    let all = (fault == Fault::OneLock).then(|| Arc::clone(&layer.all));
    let work = async move {
        let _lock = match &all {
            Some(all) => Some(all.lock().await),
            None => None,
        };
        cell.get_or_init(|| run).await.clone()
    };
    let stored = if fault == Fault::DiesWithClient {
        work.await
    } else {
        tokio::spawn(work).await.unwrap()
    };
    answer(&stored)
}

async fn run(request: Request, next: Next) -> Stored {
    let (parts, body) = next.run(request).await.into_parts();
    (
        parts.status,
        parts.headers,
        to_bytes(body, 1 << 20).await.unwrap(),
    )
}

/// What a replay has of an answer.
fn kept(fault: Fault, stored: &Stored) -> Stored {
    let (status, mut headers, body) = stored.clone();
    match fault {
        Fault::KeepsCookies => {}
        Fault::LosesHeaders => headers.clear(),
        Fault::LastLine => {
            let lines = headers.clone();
            for (name, value) in &lines {
                headers.insert(name, value.clone());
            }
            headers.remove(SET_COOKIE);
        }
        _ => {
            headers.remove(SET_COOKIE);
        }
    }
    (status, headers, body)
}

fn answer((status, headers, body): &Stored) -> Response<Body> {
    let mut answer = Response::new(Body::from(body.clone()));
    *answer.status_mut() = *status;
    *answer.headers_mut() = headers.clone();
    answer
}
