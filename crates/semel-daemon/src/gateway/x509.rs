//! When a certificate is valid: the one field of X.509 that the TLS library does not show.

/// Seconds since 1970 from and until which a certificate is valid; `None` where it cannot be read.
pub(crate) fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (certificate, _) = element(der, 0x30)?;
    let (mut fields, _) = element(certificate, 0x30)?;
    // version, where it is there; then serial number, algorithm, issuer, validity.
    if let Some((_, rest)) = element(fields, 0xa0) {
        fields = rest;
    }
    for tag in [0x02, 0x30, 0x30] {
        fields = element(fields, tag)?.1;
    }
    let (validity, _) = element(fields, 0x30)?;
    let (from, rest) = time(validity)?;
    Some((from, time(rest)?.0))
}

/// The content of the first element, which must have this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, bytes) = bytes.split_first()?;
    let (&first, mut bytes) = bytes.split_first()?;
    if found != tag {
        return None;
    }
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        length = 0;
        for _ in 0..first & 0x7f {
            let (&byte, rest) = bytes.split_first()?;
            length = length.checked_mul(256)?.checked_add(usize::from(byte))?;
            bytes = rest;
        }
    }
    (length <= bytes.len()).then(|| bytes.split_at(length))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` as seconds since 1970, and what follows.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (text, rest, digits) = match element(bytes, 0x17) {
        Some((text, rest)) => (text, rest, 2),
        None => {
            let (text, rest) = element(bytes, 0x18)?;
            (text, rest, 4)
        }
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let year = match (digits, number(0, digits)?) {
        (2, year) if year >= 50 => 1900 + year,
        (2, year) => 2000 + year,
        (_, year) => year,
    };
    let part = |at: usize| number(digits + 2 * at, digits + 2 * at + 2);
    let days = days(year, part(0)?, part(1)?);
    Some((days * 86_400 + part(2)? * 3_600 + part(3)? * 60 + part(4)?, rest))
}

/// Days since 1970-01-01 in the Gregorian calendar.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (date, number) in [
            ((1970, 1, 1), 0),
            ((2000, 2, 29), 11_016),
            ((2026, 11, 30), 20_787),
        ] {
            assert_eq!(days(date.0, date.1, date.2), number, "{date:?}");
        }
    }

    #[test]
    fn the_time_of_a_certificate_is_read() {
        let mut wanted = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(2001, 2, 3);
        wanted.not_after = rcgen::date_time_ymd(2055, 6, 7);
        let key = rcgen::KeyPair::generate().unwrap();
        let found = validity(wanted.self_signed(&key).unwrap().der()).unwrap();
        assert_eq!(found, (days(2001, 2, 3) * 86_400, days(2055, 6, 7) * 86_400));
        assert_eq!(validity(b"\x30\x82"), None);
    }
}
