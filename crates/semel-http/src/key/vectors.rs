//! String items of the public structured-field test suite (<https://github.com/httpwg/structured-field-tests>, `string.json`
//! and `string-generated.json`), written anew: what a value must parse to, or that it must fail. Its two lines per header
//! are refused here in any case: exactly one key.

use super::{KeyForm, parse};

fn strict(value: &[u8]) -> Option<Box<[u8]>> {
    parse(value, KeyForm::Strict, 255).ok()
}

/// Name, header value, the string; `None` must fail.
type Case = (&'static str, &'static [u8], Option<&'static [u8]>);

const CASES: [Case; 12] = [
    ("basic string", b"\"foo bar\"", Some(b"foo bar")),
    ("non-ascii string", b"\"f\xc3\xbc\xc3\xbc\"", None),
    ("tab in string", b"\"\\t\"", None),
    ("newline in string", b"\" \\n \"", None),
    ("single quoted string", b"'foo'", None),
    ("unbalanced string", b"\"foo", None),
    (
        "string quoting",
        b"\"foo \\\"bar\\\" \\\\ baz\"",
        Some(b"foo \"bar\" \\ baz"),
    ),
    ("bad string quoting", b"\"foo \\,\"", None),
    ("ending string quote", b"\"foo \\\"", None),
    ("abruptly ending string quote", b"\"foo \\", None),
    ("whitespace around", b"  \"foo\"  ", Some(b"foo")),
    ("with parameters", b"\"foo\"; a=1", Some(b"foo")),
];

#[test]
fn string_vectors_of_the_public_suite() {
    for (name, value, expected) in CASES {
        assert_eq!(strict(value).as_deref(), expected, "{name}");
    }
    // An empty string parses there; as a key it is too short.
    assert_eq!(strict(b"\"\""), None, "empty string");
    let long = [&b"\""[..], &[b'a'; 255], b"\""].concat();
    assert_eq!(strict(&long).map(|key| key.len()), Some(255), "long string");
}

/// `string-generated.json`: every byte, in a string and escaped.
#[test]
fn every_byte_in_a_string_and_escaped() {
    for byte in 0..=255_u8 {
        let plain = strict(&[b'"', b' ', byte, b' ', b'"']);
        let fits = (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
        let expected = fits.then(|| Box::<[u8]>::from([b' ', byte, b' ']));
        assert_eq!(plain, expected, "{byte:#04x} in a string");
        let escaped = strict(&[b'"', b'\\', byte, b'"']);
        let expected = matches!(byte, b'"' | b'\\').then(|| Box::<[u8]>::from([byte]));
        assert_eq!(escaped, expected, "{byte:#04x} escaped");
    }
}

/// Other kinds of items are no strings: token, integer, boolean, bytes, date, display string, list, inner list, dictionary.
#[test]
fn what_is_another_item_is_no_key_in_strict_mode() {
    for other in [
        &b"foo"[..],
        b"42",
        b"?1",
        b":aGVsbG8=:",
        b"@1659578233",
        b"%\"f%c3%bc\"",
        b"\"a\", \"b\"",
        b"(\"a\")",
        b"a=\"b\"",
        b"",
    ] {
        assert_eq!(strict(other), None, "{}", String::from_utf8_lossy(other));
    }
}
