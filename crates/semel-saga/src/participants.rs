//! Who is called: the trait, and handlers in this process.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use semel_core::saga::{Answer, Call, CheckedDefinition};

/// Carries calls to participants.
#[async_trait]
pub trait Participants: Send + Sync + 'static {
    /// Whether this coordinator can call every target of a definition; otherwise its sagas are left to others (rule S8).
    ///
    /// # Errors
    /// What is missing, for the operator.
    fn serves(&self, definition: &CheckedDefinition) -> Result<(), String>;

    /// What shares one concurrency limit, such as a host.
    fn destination(&self, target: &str) -> String;

    /// Makes one call. The coordinator ends it at [`Call::timeout`] and takes a panic or an end without answer for
    /// [`Answer::Unknown`]. Never repeats by itself.
    async fn call(&self, call: &Call) -> Answer;
}

type Reply = Pin<Box<dyn Future<Output = Answer> + Send>>;
type Handler = Box<dyn Fn(Call) -> Reply + Send + Sync>;

/// Participants that are functions in this process, found by the target's name.
///
/// A handler that does not finish is `Unknown`, as with a remote participant: the same rules apply.
///
/// ```
/// use semel_core::saga::Answer;
/// use semel_saga::Handlers;
/// let handlers = Handlers::new()
///     .on("reserve", |call| async move { Answer::Succeeded(call.input) })
///     .on("release", |_call| async { Answer::Succeeded("".into()) });
/// ```
#[derive(Default)]
pub struct Handlers(HashMap<String, Handler>);

impl Handlers {
    /// No handlers yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the handler of a target; a second one of the same name replaces the first.
    #[must_use]
    pub fn on<F, R>(mut self, target: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Answer> + Send + 'static,
    {
        self.0
            .insert(target.into(), Box::new(move |call| Box::pin(handler(call))));
        self
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Every target of a definition: the actions, then the compensations.
pub(crate) fn targets(definition: &CheckedDefinition) -> impl Iterator<Item = &str> {
    let steps = definition.steps();
    let actions = steps.iter().map(|step| step.action.as_str());
    actions.chain(steps.iter().filter_map(|step| step.compensation.as_deref()))
}

#[async_trait]
impl Participants for Handlers {
    fn serves(&self, definition: &CheckedDefinition) -> Result<(), String> {
        match targets(definition).find(|target| !self.0.contains_key(*target)) {
            Some(target) => Err(format!("no handler is named {target}")),
            None => Ok(()),
        }
    }

    fn destination(&self, target: &str) -> String {
        target.to_owned()
    }

    async fn call(&self, call: &Call) -> Answer {
        match self.0.get(&call.target) {
            Some(handler) => handler(call.clone()).await,
            None => Answer::Unservable(format!("no handler is named {}", call.target)),
        }
    }
}
