//! Running without protection while the store is away, where the route says so.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::Job;
use super::catch::catch;
use super::produce::judge;
use crate::body::{Body, BoxError};
use crate::headers::SEMEL_GUARANTEE;
use crate::observe::Event;
use crate::policy::{Ending, OutcomeWord};
use crate::problem::ProblemKind;
use crate::shared::Shared;

/// Runs the handler and says in the answer that nothing kept it from running twice.
pub(super) async fn pass<S, ResBody>(shared: &Arc<Shared>, job: Job<S>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>>,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    shared.saw(Event::OpenPassed, Some(&job.key));
    tracing::warn!(key = %job.key, "the store of keys gives no answer; the request is run without protection");
    let (mut inner, request) = job.request();
    let mut response = match catch(async { inner.call(request).await }).await {
        Ok(response) => response?.map(Body::new),
        Err(panic) => {
            tracing::error!(%panic, "a handler panicked");
            shared.problem(
                ProblemKind::HandlerFailed,
                "the service failed; the request may have been done",
            )
        }
    };
    let word = match judge(shared, &response) {
        Ending::Store | Ending::Forget => OutcomeWord::Succeeded,
        Ending::Refuse | Ending::Release => OutcomeWord::Refused,
        Ending::Unknown => OutcomeWord::Unknown,
        Ending::Defer => OutcomeWord::read(response.headers().get(crate::headers::SEMEL_OUTCOME))
            .unwrap_or(OutcomeWord::Unknown),
    };
    shared.stamp(&mut response, word, None);
    response
        .headers_mut()
        .insert(SEMEL_GUARANTEE, HeaderValue::from_static("none"));
    Ok(response)
}
