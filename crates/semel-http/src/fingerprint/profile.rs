//! Which parts of a body count.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// How a body is read for its fingerprint.
///
/// | profile | equal are | everything else |
/// | --- | --- | --- |
/// | [`Raw`](Self::Raw) | the same bytes | |
/// | [`Json`](Self::Json) | the same JSON value: spaces and the order of members do not count (RFC 8785) | raw |
/// | [`JsonOnly`](Self::JsonOnly) | the same values at these pointers | raw |
/// | [`JsonExcept`](Self::JsonExcept) | the same JSON value without what stands at these pointers | raw |
/// | [`Form`](Self::Form) | the same fields; their order does not count, that of values of one field does | raw |
/// | [`Multipart`](Self::Multipart) | the same parts in the same order; the boundary does not count | raw |
///
/// "Everything else" is a body of another content type, one that is compressed, that cannot be read, or that does not mean
/// one thing: JSON with a member twice, or with a number of more than 15 digits, which readers round differently.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Profile {
    /// The body's bytes. The default: it takes nothing for the same that a handler could tell apart.
    #[default]
    Raw,
    /// The JSON value.
    Json,
    /// Only what stands at these pointers. For handlers that look at nothing else.
    JsonOnly(Vec<Pointer>),
    /// All but what stands at these pointers, such as a time at which the client sent it.
    JsonExcept(Vec<Pointer>),
    /// The fields of `application/x-www-form-urlencoded`.
    Form,
    /// The parts of `multipart/form-data`: name, file name, type, content.
    Multipart,
}

impl Profile {
    pub(super) const RAW: u8 = 16;

    /// The number that stands in fingerprints; never given to another recipe.
    pub(super) const fn number(&self) -> u8 {
        match self {
            Self::Raw => Self::RAW,
            Self::Json => 17,
            Self::JsonOnly(_) => 18,
            Self::JsonExcept(_) => 19,
            Self::Form => 20,
            Self::Multipart => 21,
        }
    }

    /// The profile under which a record of this number was written, where this one has the same number or the number
    /// says it all.
    pub(crate) fn of_number(&self, number: u8) -> Option<Self> {
        match number {
            Self::RAW => Some(Self::Raw),
            17 => Some(Self::Json),
            20 => Some(Self::Form),
            21 => Some(Self::Multipart),
            _ if number == self.number() => Some(self.clone()),
            _ => None,
        }
    }
}

/// A JSON pointer (RFC 6901) to one place below the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer(String);

/// This is no JSON pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no JSON pointer: it begins with /, and ~ stands only in ~0 and ~1")]
pub struct PointerError(String);

impl Pointer {
    /// A pointer such as `/amount` or `/items/0/sku`.
    ///
    /// # Errors
    /// The text is none.
    pub fn new(text: impl Into<String>) -> Result<Self, PointerError> {
        let text = text.into();
        let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if text.starts_with('/') && escapes {
            Ok(Self(text))
        } else {
            Err(PointerError(text))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The content type without its parameters, in lower case.
pub(crate) fn essence(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(only), None) = (values.next(), values.next()) else {
        return None;
    };
    let kind = only.to_str().ok()?.split(';').next()?;
    Some(kind.trim().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_checked() {
        for good in ["/a", "/", "/a/0/b", "/a~1b/~0"] {
            assert_eq!(Pointer::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a", "/~", "/~2"] {
            assert!(Pointer::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_two_profiles_share_a_number_and_each_finds_itself() {
        let pointers = vec![Pointer::new("/a").unwrap()];
        let all = [
            Profile::Raw,
            Profile::Json,
            Profile::JsonOnly(pointers.clone()),
            Profile::JsonExcept(pointers),
            Profile::Form,
            Profile::Multipart,
        ];
        let numbers: std::collections::HashSet<u8> = all.iter().map(Profile::number).collect();
        assert_eq!(numbers.len(), all.len());
        for profile in all {
            assert_eq!(profile.of_number(profile.number()), Some(profile.clone()));
            assert_eq!(profile.of_number(Profile::RAW), Some(Profile::Raw));
            assert_eq!(profile.of_number(1), None);
        }
    }
}
