//! What is asked: the body of each operation, and what it means in core's terms. Unknown fields, wrong types, null where a
//! value belongs and every limit are refused here, before the store is asked anything.

use semel_core::claim::{
    Abandonment, Claim, Completion, Extension, Keep, Lease, Nonce, OwnerLost, Release, Settlement, StateName,
    Token, Verdict,
};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::KeyQuery;
use semel_core::{Fingerprint, Key, Scope, StoredOutcome};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::octets::{FingerprintText, NonceText, Octets, OwnerLostWord, Whole, present};
use super::problem::{Kind, Problem};

/// A claim's lease where the request does not say.
pub(crate) const LEASE_MS_DEFAULT: i64 = 30_000;
/// The longest `wait_ms` that can be asked for; what is waited is at most `wait_ms_max` of `[api]`.
pub(crate) const WAIT_MS_MAX: u64 = 300_000;
/// How long an issued id is good where the request does not say (an hour), and at most (a week).
pub(crate) const ISSUED_MS_DEFAULT: i64 = 3_600_000;
/// How long an issued id is good at most.
pub(crate) const ISSUED_MS_MAX: i64 = 7 * 86_400_000;
/// Bytes of a principal: 1 to this many.
pub(crate) const PRINCIPAL_BYTES_MAX: usize = 255;
/// Records of one page where the request does not say, and at most.
pub(crate) const PAGE_DEFAULT: u32 = 100;
/// Records of one page at most.
pub(crate) const PAGE_MAX: u32 = 200;
/// Items of one batch.
pub(crate) const ITEMS_MAX: usize = limits::BATCH_ITEMS_MAX;
/// Bytes of `by`.
pub(crate) const BY_BYTES_MAX: usize = 200;
/// Bytes of `why`.
pub(crate) const WHY_BYTES_MAX: usize = 1_000;

/// Reads a body; a mistake is named with its path.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let at = if path == "." {
            String::new()
        } else {
            format!("{path}: ")
        };
        Problem::new(Kind::Unreadable, format!("{at}{inner}"))
    })?;
    reader
        .end()
        .map_err(|error| Problem::new(Kind::Unreadable, format!("after the JSON: {error}")))?;
    Ok(value)
}

fn unreadable(path: &str, error: impl std::fmt::Display) -> Problem {
    Problem::new(Kind::Unreadable, format!("{path}{error}"))
}

fn key(scope: &Octets, id: &Octets) -> Result<Key, LimitExceeded> {
    Key::new(Scope::new(&scope.0)?, &id.0)
}

/// What came of a run.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutcomeWord {
    /// It happened.
    Succeeded,
    /// It is certain that nothing happened.
    Refused,
    /// It happened, and the output is kept elsewhere.
    Forgotten,
}

fn outcome(word: OutcomeWord, output: Option<Octets>) -> Result<StoredOutcome, String> {
    match (word, output) {
        (OutcomeWord::Succeeded, output) => Ok(StoredOutcome::Succeeded(output.unwrap_or_default().0)),
        (OutcomeWord::Refused, output) => Ok(StoredOutcome::Refused(output.unwrap_or_default().0)),
        (OutcomeWord::Forgotten, None) => Ok(StoredOutcome::Forgotten),
        (OutcomeWord::Forgotten, Some(_)) => {
            Err("a forgotten outcome has no `output`: leave it out, or send `succeeded`".to_owned())
        }
    }
}

fn keep(retention_ms: Option<Whole>, tombstone_ms: Option<Whole>) -> Keep {
    let default = Keep::default();
    Keep {
        retention_ms: retention_ms.map_or(default.retention_ms, |ms| ms.0),
        tombstone_ms: tombstone_ms.map_or(default.tombstone_ms, |ms| ms.0),
    }
}

/// `claim`, and one item of `claim_many`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimBody {
    scope: Octets,
    id: Octets,
    #[serde(default, deserialize_with = "present")]
    input: Option<Octets>,
    #[serde(default, deserialize_with = "present")]
    fingerprint: Option<FingerprintText>,
    #[serde(default, deserialize_with = "present")]
    nonce: Option<NonceText>,
    #[serde(default, deserialize_with = "present")]
    lease_ms: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    owner_lost: Option<OwnerLostWord>,
    #[serde(default, deserialize_with = "present")]
    wait_ms: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    principal: Option<Octets>,
}

/// A claim that may be sent to a store.
#[derive(Debug, Clone)]
pub(crate) struct Claiming {
    /// The claim.
    pub(crate) claim: Claim,
    /// Whether the nonce was drawn here: then only the answer tells it.
    pub(crate) drawn: bool,
    /// How long to wait while somebody runs the key.
    pub(crate) wait_ms: u64,
    /// To whom the id must have been issued.
    pub(crate) principal: Option<Octets>,
}

impl ClaimBody {
    /// The claim; `path` is put before what is wrong with it.
    ///
    /// # Errors
    /// A limit, or not exactly one of `input` and `fingerprint`.
    pub(crate) fn claim(self, path: &str) -> Result<Claiming, Problem> {
        let fingerprint = match (self.input, self.fingerprint) {
            (Some(input), None) => Fingerprint::of(&input.0),
            (None, Some(made)) => made.0,
            _ => {
                let text = "send either `input`, what is asked for (it is hashed, not stored), or its `fingerprint`: \
                            by it another request under the same key is noticed";
                return Err(unreadable(path, text));
            }
        };
        let wait_ms = wait_ms(self.wait_ms).map_err(|limit| unreadable(path, limit))?;
        if let Some(principal) = &self.principal {
            check_principal(principal).map_err(|limit| unreadable(path, limit))?;
        }
        let claim = Claim {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable(path, limit))?,
            fingerprint,
            nonce: self.nonce.map_or_else(Nonce::random, |given| given.0),
            owner_lost: self.owner_lost.map_or(OwnerLost::Hold, Into::into),
            lease_ms: self.lease_ms.map_or(LEASE_MS_DEFAULT, |ms| ms.0),
        };
        claim.check().map_err(|limit| unreadable(path, limit))?;
        Ok(Claiming {
            claim,
            drawn: self.nonce.is_none(),
            wait_ms,
            principal: self.principal,
        })
    }
}

fn check_principal(principal: &Octets) -> Result<(), LimitExceeded> {
    let (actual, max) = (principal.0.len() as u64, PRINCIPAL_BYTES_MAX as u64);
    let help = "send the id of the verified caller, or a hash of a longer one";
    limits::check("principal", "bytes", actual, 1, max, help)
}

/// `issue`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssueBody {
    #[serde(default, deserialize_with = "present")]
    scope: Option<Octets>,
    #[serde(default, deserialize_with = "present")]
    gateway: Option<Octets>,
    #[serde(default, deserialize_with = "present")]
    host: Option<Octets>,
    principal: Octets,
    #[serde(default, deserialize_with = "present")]
    good_ms: Option<Whole>,
}

/// An id that is wanted.
#[derive(Debug)]
pub(crate) struct Issuing {
    /// For this scope.
    pub(crate) scope: Scope,
    /// For this principal; `None` where the scope is one principal's own.
    pub(crate) principal: Option<Octets>,
    /// For so long.
    pub(crate) good_ms: i64,
}

impl IssueBody {
    /// What is wanted.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn issuing(self) -> Result<Issuing, Problem> {
        check_principal(&self.principal).map_err(|limit| unreadable("", limit))?;
        let host = self.host.map(|host| host.0.to_ascii_lowercase());
        let (scope, principal) = match (self.scope, self.gateway, &host) {
            (Some(scope), None, None) => {
                let scope = Scope::new(&scope.0).map_err(|limit| unreadable("", limit))?;
                (scope, Some(self.principal))
            }
            (None, Some(gateway), host) => {
                let scope = crate::gateway::scope_of(&gateway.0, &self.principal.0, host.as_deref());
                (scope, None)
            }
            _ => {
                let text = "send either `scope`, for an id that is claimed here, or `gateway` (its name; with host = \
                            \"preserve\" also `host`), for a key that is sent to that gateway";
                return Err(unreadable("", text));
            }
        };
        let good_ms = self.good_ms.map_or(ISSUED_MS_DEFAULT, |ms| ms.0);
        let help = "choose good_ms within the limit";
        limits::check_signed("good", "ms", good_ms, 1, ISSUED_MS_MAX.unsigned_abs(), help)
            .map_err(|limit| unreadable("", limit))?;
        Ok(Issuing {
            scope,
            principal,
            good_ms,
        })
    }
}

fn wait_ms(asked: Option<Whole>) -> Result<u64, LimitExceeded> {
    let asked = asked.map_or(0, |ms| ms.0);
    let help = "choose wait_ms within the limit";
    limits::check_signed("wait", "ms", asked, 0, WAIT_MS_MAX, help)?;
    Ok(asked.unsigned_abs())
}

/// `claim_many`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimManyBody {
    claims: Vec<ClaimBody>,
}

fn check_items(items: usize) -> Result<(), Problem> {
    let help = "send from one item to that many";
    limits::check("batch", "items", items as u64, 1, ITEMS_MAX as u64, help)
        .map_err(|limit| unreadable("", limit))
}

impl ClaimManyBody {
    /// The claims.
    ///
    /// # Errors
    /// One of them cannot be read; none was made.
    pub(crate) fn claims(self) -> Result<Vec<Claiming>, Problem> {
        check_items(self.claims.len())?;
        let mut claims = Vec::with_capacity(self.claims.len());
        for (n, item) in self.claims.into_iter().enumerate() {
            let path = format!("claims[{n}]: ");
            if item.wait_ms.is_some() {
                return Err(unreadable(&path, "`wait_ms` is for a single claim"));
            }
            if item.principal.is_some() {
                return Err(unreadable(&path, "`principal` is for a single claim"));
            }
            claims.push(item.claim(&path)?);
        }
        Ok(claims)
    }
}

/// `complete`, and one item of `complete_many`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteBody {
    scope: Octets,
    id: Octets,
    token: Whole,
    nonce: NonceText,
    outcome: OutcomeWord,
    #[serde(default, deserialize_with = "present")]
    output: Option<Octets>,
    #[serde(default, deserialize_with = "present")]
    retention_ms: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    tombstone_ms: Option<Whole>,
}

impl CompleteBody {
    /// The completion; `path` is put before what is wrong with it.
    ///
    /// # Errors
    /// A limit, or an output where none belongs.
    pub(crate) fn completion(self, path: &str) -> Result<Completion, Problem> {
        let completion = Completion {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable(path, limit))?,
            lease: lease(self.token, self.nonce),
            outcome: outcome(self.outcome, self.output).map_err(|text| unreadable(path, text))?,
            keep: keep(self.retention_ms, self.tombstone_ms),
        };
        completion.check().map_err(|limit| unreadable(path, limit))?;
        Ok(completion)
    }
}

const fn lease(token: Whole, nonce: NonceText) -> Lease {
    Lease {
        token: Token(token.0),
        nonce: nonce.0,
    }
}

/// `complete_many`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteManyBody {
    completions: Vec<CompleteBody>,
}

impl CompleteManyBody {
    /// The completions.
    ///
    /// # Errors
    /// One of them cannot be read; none was stored.
    pub(crate) fn completions(self) -> Result<Vec<Completion>, Problem> {
        check_items(self.completions.len())?;
        let items = self.completions.into_iter().enumerate();
        items
            .map(|(n, item)| item.completion(&format!("completions[{n}]: ")))
            .collect()
    }
}

/// `extend`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendBody {
    scope: Octets,
    id: Octets,
    token: Whole,
    nonce: NonceText,
    #[serde(default, deserialize_with = "present")]
    lease_ms: Option<Whole>,
}

impl ExtendBody {
    /// The extension.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn extension(self) -> Result<Extension, Problem> {
        let extension = Extension {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))?,
            lease: lease(self.token, self.nonce),
            lease_ms: self.lease_ms.map_or(LEASE_MS_DEFAULT, |ms| ms.0),
        };
        extension.check().map_err(|limit| unreadable("", limit))?;
        Ok(extension)
    }
}

/// `release`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseBody {
    scope: Octets,
    id: Octets,
    nonce: NonceText,
    #[serde(default, deserialize_with = "present")]
    token: Option<Whole>,
}

impl ReleaseBody {
    /// The release.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn release(self) -> Result<Release, Problem> {
        Ok(Release {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))?,
            nonce: self.nonce.0,
            token: self.token.map(|token| Token(token.0)),
        })
    }
}

/// `abandon`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbandonBody {
    scope: Octets,
    id: Octets,
    token: Whole,
    nonce: NonceText,
}

impl AbandonBody {
    /// The abandonment.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn abandonment(self) -> Result<Abandonment, Problem> {
        Ok(Abandonment {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))?,
            lease: lease(self.token, self.nonce),
        })
    }
}

/// `read`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadBody {
    scope: Octets,
    id: Octets,
}

impl ReadBody {
    /// The key.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn key(self) -> Result<Key, Problem> {
        key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))
    }
}

/// `wait`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitBody {
    scope: Octets,
    id: Octets,
    wait_ms: Whole,
}

impl WaitBody {
    /// The key, and how long to wait.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn wait(self) -> Result<(Key, u64), Problem> {
        let key = key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))?;
        let wait = wait_ms(Some(self.wait_ms)).map_err(|limit| unreadable("", limit))?;
        Ok((key, wait))
    }
}

/// A state by its word.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateWord {
    /// Somebody runs it.
    Claimed,
    /// It may have happened.
    Unknown,
    /// It is done.
    Done,
    /// It was done once.
    Tombstone,
}

impl From<StateWord> for StateName {
    fn from(word: StateWord) -> Self {
        match word {
            StateWord::Claimed => Self::Claimed,
            StateWord::Unknown => Self::Unknown,
            StateWord::Done => Self::Done,
            StateWord::Tombstone => Self::Tombstone,
        }
    }
}

/// `list`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListBody {
    #[serde(default, deserialize_with = "present")]
    scope: Option<Octets>,
    #[serde(default, deserialize_with = "present")]
    state: Option<StateWord>,
    #[serde(default, deserialize_with = "present")]
    limit: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    page: Option<String>,
}

impl ListBody {
    /// The query.
    ///
    /// # Errors
    /// A limit, or a page that was not answered here.
    pub(crate) fn query(self) -> Result<KeyQuery, Problem> {
        let scope = match &self.scope {
            None => None,
            Some(scope) => Some(Scope::new(&scope.0).map_err(|limit| unreadable("", limit))?),
        };
        let limit = page_limit(self.limit)?;
        let from = from_page(self.page)?;
        Ok(KeyQuery {
            scope,
            state: self.state.map(Into::into),
            from,
            limit,
        })
    }
}

/// Reads a page token.
fn from_page(page: Option<String>) -> Result<Option<bytes::Bytes>, Problem> {
    let Some(page) = page else { return Ok(None) };
    let text = "`page` is not a `next` that was answered here: leave it out to begin again";
    super::reply::from_page(&page)
        .map(Some)
        .ok_or_else(|| unreadable("", text))
}

/// Reads a limit of records.
fn page_limit(limit: Option<Whole>) -> Result<u32, Problem> {
    let limit = limit.map_or(i64::from(PAGE_DEFAULT), |limit| limit.0);
    let help = "choose limit within that, and ask for the next page with `page`";
    limits::check_signed("limit", "records", limit, 1, PAGE_MAX.into(), help)
        .map_err(|limit| unreadable("", limit))?;
    Ok(u32::try_from(limit).unwrap_or(PAGE_MAX))
}

/// `close_scope`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseScopeBody {
    scope: Octets,
    by: String,
    why: String,
    #[serde(default, deserialize_with = "present")]
    limit: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    page: Option<String>,
    #[serde(default, deserialize_with = "present")]
    retention_ms: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    tombstone_ms: Option<Whole>,
}

/// A scope that is to be closed.
#[derive(Debug)]
pub(crate) struct Closing {
    /// Which.
    pub(crate) scope: Scope,
    /// How long it is remembered that its keys were used.
    pub(crate) keep: Keep,
    /// Where to begin.
    pub(crate) from: Option<bytes::Bytes>,
    /// Records at most.
    pub(crate) limit: u32,
    /// Who, and why.
    pub(crate) person: Person,
}

impl CloseScopeBody {
    /// What is to be closed.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn closing(self) -> Result<Closing, Problem> {
        let keep = keep(self.retention_ms, self.tombstone_ms);
        keep.check().map_err(|limit| unreadable("", limit))?;
        let person = Person {
            by: self.by,
            why: self.why,
        };
        person.check().map_err(|limit| unreadable("", limit))?;
        Ok(Closing {
            scope: Scope::new(&self.scope.0).map_err(|limit| unreadable("", limit))?,
            keep,
            from: from_page(self.page)?,
            limit: page_limit(self.limit)?,
            person,
        })
    }
}

/// What somebody found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerdictWord {
    Succeeded,
    Refused,
    Forgotten,
    DidNotHappen,
}

/// `settle`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody {
    scope: Octets,
    id: Octets,
    token: Whole,
    verdict: VerdictWord,
    #[serde(default, deserialize_with = "present")]
    output: Option<Octets>,
    by: String,
    why: String,
    #[serde(default, deserialize_with = "present")]
    retention_ms: Option<Whole>,
    #[serde(default, deserialize_with = "present")]
    tombstone_ms: Option<Whole>,
}

/// Who settles or closes, and why.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    /// Who.
    pub(crate) by: String,
    /// Why.
    pub(crate) why: String,
}

impl SettleBody {
    /// The settlement, with who and why.
    ///
    /// # Errors
    /// A limit, or an output where none belongs.
    pub(crate) fn settlement(self) -> Result<(Settlement, Person), Problem> {
        let word = match self.verdict {
            VerdictWord::Succeeded => Some(OutcomeWord::Succeeded),
            VerdictWord::Refused => Some(OutcomeWord::Refused),
            VerdictWord::Forgotten => Some(OutcomeWord::Forgotten),
            VerdictWord::DidNotHappen => None,
        };
        let verdict = match (word, self.output) {
            (Some(word), output) => {
                Verdict::Happened(outcome(word, output).map_err(|text| unreadable("", text))?)
            }
            (None, None) => Verdict::DidNotHappen,
            (None, Some(_)) => {
                return Err(unreadable(
                    "",
                    "what did not happen has no `output`: leave it out",
                ));
            }
        };
        let settlement = Settlement {
            key: key(&self.scope, &self.id).map_err(|limit| unreadable("", limit))?,
            token: Token(self.token.0),
            verdict,
            keep: keep(self.retention_ms, self.tombstone_ms),
        };
        settlement.check().map_err(|limit| unreadable("", limit))?;
        let person = Person {
            by: self.by,
            why: self.why,
        };
        person.check().map_err(|limit| unreadable("", limit))?;
        Ok((settlement, person))
    }
}

impl Person {
    /// Refuses a name or a reason that is empty or too long.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub(crate) fn check(&self) -> Result<(), LimitExceeded> {
        let help = "say who decides this";
        limits::check("by", "bytes", self.by.len() as u64, 1, BY_BYTES_MAX as u64, help)?;
        let help = "say in a line how that was found out";
        limits::check(
            "why",
            "bytes",
            self.why.len() as u64,
            1,
            WHY_BYTES_MAX as u64,
            help,
        )
    }
}
