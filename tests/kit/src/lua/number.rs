//! Numbers as text, and back, as Redis reads and writes them.

/// Writes a number as `%.17g` does.
pub fn of_double(number: f64) -> String {
    const DIGITS: i32 = 17;
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let shorten = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        let behind = usize::try_from(DIGITS - 1 - exponent).expect("digits behind the point");
        return shorten(&format!("{number:.behind$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", shorten(digits), exponent.abs())
}

/// Reads a whole number, which has no other way to be written.
pub fn whole(word: &[u8]) -> Result<i64, String> {
    let wrong = || "ERR value is not an integer or out of range".to_owned();
    let text = std::str::from_utf8(word).map_err(|_| wrong())?;
    let number: i64 = text.parse().map_err(|_| wrong())?;
    if number.to_string() == text { Ok(number) } else { Err(wrong()) }
}

/// Reads a score, or a bound of scores.
pub fn score(word: &[u8], wrong: &str) -> Result<f64, String> {
    let text = std::str::from_utf8(word).map_err(|_| wrong.to_owned())?;
    match text.to_ascii_lowercase().as_str() {
        "inf" | "+inf" => Ok(f64::INFINITY),
        "-inf" => Ok(f64::NEG_INFINITY),
        text => {
            let number: f64 = text.parse().map_err(|_| wrong.to_owned())?;
            if number.is_nan() { Err(wrong.to_owned()) } else { Ok(number) }
        }
    }
}
