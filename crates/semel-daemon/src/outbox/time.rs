//! Times as a person types them.

use std::time::Duration;

use semel_core::Timestamp;

const DAY_US: i64 = 86_400_000_000;

/// `2026-12-01T13:00:00Z`, with an offset, fraction or without seconds; or `90m`, `2h`, `3d`, `20s` before `now`.
pub(super) fn parse(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    ago(text)
        .map(|us| Timestamp(now.0.saturating_sub(us)))
        .or_else(|| moment(text))
        .ok_or_else(|| {
            format!("`{text}` is no time; write 2026-12-01T13:00:00Z, or 90m, 2h, 3d for so long ago")
        })
}

/// A length of time: `20s`, `90m`, `2h`, `3d`.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let micros = ago(text).and_then(|us| u64::try_from(us).ok());
    micros
        .map(Duration::from_micros)
        .ok_or_else(|| format!("`{text}` is no length of time; write 20s, 90m, 2h or 3d"))
}

fn ago(text: &str) -> Option<i64> {
    let unit = text.chars().last()?;
    let us = match unit {
        's' => 1_000_000,
        'm' => 60_000_000,
        'h' => 3_600_000_000,
        'd' => DAY_US,
        _ => return None,
    };
    digits(&text[..text.len() - 1])?.checked_mul(us)
}

fn digits(text: &str) -> Option<i64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

fn moment(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = parts(date, '-')?;
    let (time, offset_min) = match rest.find(['Z', 'z', '+', '-']) {
        Some(at) if matches!(&rest[at..], "Z" | "z") => (&rest[..at], 0),
        Some(at) => {
            let (hours, minutes) = rest[at + 1..].split_once(':')?;
            let (hours, minutes) = (
                digits(hours).filter(|n| *n < 24)?,
                digits(minutes).filter(|n| *n < 60)?,
            );
            let sign = if rest.as_bytes()[at] == b'-' { -1 } else { 1 };
            (&rest[..at], sign * (hours * 60 + minutes))
        }
        // A time without a zone could be anybody's.
        None => return None,
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let full = if time.matches(':').count() == 1 {
        format!("{time}:00")
    } else {
        time.to_owned()
    };
    let [hour, minute, second] = parts(&full, ':')?;
    let micros = match fraction {
        "" => 0,
        digits_of => {
            digits(digits_of)?;
            let six: String = digits_of.chars().chain("000000".chars()).take(6).collect();
            digits(&six)?
        }
    };
    let in_range = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let seconds =
        days_since_1970(year, month, day) * 86_400 + hour * 3_600 + (minute - offset_min) * 60 + second;
    in_range.then_some(Timestamp(seconds * 1_000_000 + micros))
}

fn parts(text: &str, by: char) -> Option<[i64; 3]> {
    let mut numbers = text.split(by).map(digits);
    let three = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(three)
}

const fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + leap(year) as i64,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let years: i64 = (1970..year).map(|year| 365 + i64::from(leap(year))).sum();
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    years + months + day - 1
}

/// An age, as people say it.
pub(super) fn age(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        let now = Timestamp(1_000_000_000_000_000);
        for text in [
            "1970-01-01T00:00:00.000000Z",
            "2024-02-29T23:59:59.123456Z",
            "2000-03-01T00:00:00.000000Z",
            "9999-12-31T23:59:59.999999Z",
        ] {
            let read = parse(text, now).unwrap();
            assert_eq!(parse(&read.rfc3339(), now), Ok(read), "{text} {}", read.rfc3339());
            assert!(
                read.rfc3339().starts_with(&text[..19]),
                "{text} {}",
                read.rfc3339()
            );
        }
        assert_eq!(
            parse("2026-12-01T13:00+01:00", now),
            parse("2026-12-01T12:00:00Z", now)
        );
        assert_eq!(
            parse("2026-12-01 11:30:00-00:30", now),
            parse("2026-12-01T12:00Z", now)
        );
        assert_eq!(parse("90m", now), Ok(Timestamp(now.0 - 5_400_000_000)));
        assert_eq!(parse("2d", now), Ok(Timestamp(now.0 - 2 * DAY_US)));
    }

    #[test]
    fn what_could_be_two_times_is_none() {
        for text in [
            "",
            "m",
            "-5m",
            "1w",
            "2026-12-01",
            "2026-12-01T13:00:00",
            "2026-13-01T00:00Z",
            "2023-02-29T00:00Z",
            "2026-12-01T24:00Z",
            "2026-12-01T00:00:00.Zx",
            "1969-12-31T00:00Z",
            "99999999999999999999d",
            "é",
        ] {
            assert!(parse(text, Timestamp(0)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_age_is_short() {
        for (ms, text) in [
            (-5, "0s"),
            (59_999, "59s"),
            (61_000, "1m1s"),
            (3_660_000, "1h1m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(age(ms), text);
        }
    }
}
