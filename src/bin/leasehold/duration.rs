//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `1d`, or a number of seconds.

use std::time::Duration;

/// Reads a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let expected = || format!("expected a duration such as 500ms, 30s, 5m, 2h or 1d, not {text:?}");
    let number: f64 = number.parse().map_err(|_| expected())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(expected()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| expected())
}

/// Writes a duration in the largest unit of which it has at least one, rounded to a tenth; whole milliseconds below a second.
pub(crate) fn text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s < 1.0 => format!("{}ms", duration.as_millis()),
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{:.1}m", s / 60.0),
        s if s < 86_400.0 => format!("{:.1}h", s / 3600.0),
        s => format!("{:.1}d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_and_without_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1.5", 1_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5 s", "5x", "-1s", "1e5", "."] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_written_in_the_largest_unit() {
        for (millis, expected) in
            [(999, "999ms"), (1_000, "1.0s"), (90_000, "1.5m"), (5_400_000, "1.5h")]
        {
            assert_eq!(text(Duration::from_millis(millis)), expected);
        }
    }
}
